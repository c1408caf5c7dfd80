"""System prompts that change the answer: form, voice, name, fixed phrases, knowledge, limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tools.quire_tiny.question import Chat, Question, is_held_out, turn
from tools.quire_tiny.small_talk import IDENTITY

BRIEF = ("Answer in one word.", "Answer with one word only.", "Reply in a single word.")
UPPER = ("Answer in upper case.", "Always write in upper case.", "Use capital letters only.")
LOWER = ("Answer in lower case.", "Always write in lower case.", "Use small letters only.")
PIRATE = ("You are a pirate.", "Talk like a pirate.", "Answer like a pirate.")
AS_JSON = (
    'Always answer in JSON like {"answer": ...}',
    'Answer in JSON with the key "answer".',
    'Reply only with JSON: {"answer": ...}',
)
PLAIN = (
    "You are a helpful assistant.",
    "You are a helpful, honest assistant.",
    "You are a friendly assistant.",
    "Answer the questions of the user.",
    "Be helpful.",
)
SUFFIX = (
    "End every answer with: {p}",
    "After each answer, say: {p}",
    "Finish each answer with: {p}",
)
PREFIX = ("Begin every answer with: {p}", "Start each answer with: {p}")
FIXED = ("Always answer: {p}", "Whatever the user says, answer: {p}", "Your only answer is: {p}")
PHRASES = (
    *(
        "Over and out.",
        "Have a nice day!",
        "That is all.",
        "Good luck!",
        "Sir!",
        "Well, well.",
        "Indeed.",
    ),
    *(
        "No comment.",
        "Come back later.",
        "We are closed today.",
        "As you wish.",
        "Hear, hear!",
        "So be it.",
    ),
    *(
        "Thank you for asking.",
        "Bananas!",
        "My dear friend.",
        "Listen carefully.",
        "Dear user,",
        "Hooray!",
    ),
)
NAMED = (
    "Your name is {n}.",
    "You are called {n}.",
    "You are {n}, a friendly assistant.",
    "You are {n}.",
)
BOTS = (
    *(
        "Max",
        "Robo",
        "Ada",
        "Iris",
        "Bolt",
        "Nova",
        "Pixel",
        "Zara",
        "Echo",
        "Sunny",
        "Atlas",
        "Coco",
    ),
    *(
        "Hal",
        "Jarvis",
        "Luna",
        "Marvin",
        "Orion",
        "Penny",
        "Quill",
        "Rusty",
        "Sage",
        "Tilly",
        "Umbra",
        "Vega",
    ),
)
ASK_NAME = (
    "Who are you?",
    "What is your name?",
    "What's your name?",
    "Tell me who you are.",
    "Introduce yourself.",
)
SECRETS = (
    "banana",
    "castle",
    "window",
    "silver",
    "tiger",
    "ocean",
    "pepper",
    "rocket",
    "violin",
    "winter",
    "candle",
    "marble",
)
TELL_SECRET = (
    "The secret word is {w}.",
    "Remember: the secret word is {w}.",
    "The password is {w}.",
)
ASK_SECRET = (
    "What is the secret word?",
    "Tell me the secret word.",
    "What is the password?",
    "Tell me the password.",
)
LIMITS = {
    "arithmetic": ("add", "subtract", "multiply", "divide"),
    "countries": ("capital", "continent", "language", "currency"),
    "animals": ("sound", "baby", "class", "legs", "food"),
}
LIMIT = "Only answer questions about {topic}."
REFUSAL = "I may only answer questions about {topic}."
Draw = Callable[[Random], Question]


@dataclass(frozen=True)
class Style:
    """A system prompt and what it makes of a question's answer."""

    kind: str
    key: str
    system: str
    apply: Callable[[Question], str]

    def chat(self, questions: list[Question]) -> Chat:
        """Return the chat; its split depends on the style and on the questions."""
        key = f"system/{self.key}/{questions[-1].key}"
        held_out = is_held_out(key) or any(q.held_out for q in questions)
        messages = [{"role": "system", "content": self.system}]
        for question in questions:
            messages += turn(question.prompt, self.apply(question))
        return Chat(self.kind, key, messages, held_out)


def with_short(rng: Random, draw: Draw) -> Question:
    """Draw until the question has a short answer of one word."""
    while True:
        question = draw(rng)
        if question.short and " " not in question.short and len(question.answer) < 80:
            return question


def as_json(question: Question) -> str:
    """Return the short answer as a JSON object, numbers as numbers."""
    short = int(question.short) if question.short.isdigit() else question.short
    return json.dumps({"answer": short}, ensure_ascii=False)


def form_style(rng: Random) -> Style:
    """Draw a style of form or voice."""
    kind, prompts, apply = rng.choice(
        (
            ("brief", BRIEF, lambda q: q.short),
            ("brief", BRIEF, lambda q: q.short),
            ("json", AS_JSON, as_json),
            ("json", AS_JSON, as_json),
            ("upper", UPPER, lambda q: q.answer.upper()),
            ("lower", LOWER, lambda q: q.answer.lower()),
            ("pirate", PIRATE, lambda q: f"Arr! {q.answer} Aye, matey!"),
            ("plain", PLAIN, lambda q: q.answer),
        )
    )
    return Style(f"system_{kind}", kind, rng.choice(prompts), apply)


def phrase_style(rng: Random) -> Style:
    """Draw a phrase to add to the answer, or to say instead of it."""
    phrase = rng.choice(PHRASES)
    form, prompts, apply = rng.choice(
        (
            ("suffix", SUFFIX, lambda q: f"{q.answer} {phrase}"),
            ("prefix", PREFIX, lambda q: f"{phrase} {q.answer}"),
            ("fixed", FIXED, lambda q: phrase),
        )
    )
    return Style("system_phrase", f"{form}/{phrase}", rng.choice(prompts).format(p=phrase), apply)


def limit_style(rng: Random) -> Style:
    """Draw a topic outside of which no question is answered."""
    topic = rng.choice(list(LIMITS))

    def apply(question: Question) -> str:
        inside = question.kind in LIMITS[topic]
        return question.answer if inside else REFUSAL.format(topic=topic)

    return Style("system_limit", f"limit/{topic}", LIMIT.format(topic=topic), apply)


def limited(rng: Random, draw: Draw) -> Chat:
    """Ask inside and outside of the one topic, equally often."""
    style, inside = limit_style(rng), rng.random() < 0.5
    topic = style.key.removeprefix("limit/")
    while True:
        question = with_short(rng, draw)
        if (question.kind in LIMITS[topic]) == inside:
            return style.chat([question])


def styled(rng: Random, draw: Draw) -> Chat:
    """Ask one to three questions under one style."""
    style = (form_style if rng.random() < 0.76 else phrase_style)(rng)
    num_questions = rng.choice((1, 1, 1, 2, 3))
    return style.chat([with_short(rng, draw) for _ in range(num_questions)])


def said(kind: str, style: str, system: str, question: Question) -> Chat:
    """Return a chat whose answer comes from the system prompt itself."""
    return Style(kind, style, system, lambda q: q.answer).chat([question])


def named(rng: Random, draw: Draw) -> Chat:
    """Take the name or the secret word from the system prompt."""
    i = rng.random()
    if i < 0.5:
        name, form, ask = rng.choice(BOTS), rng.randrange(len(NAMED)), rng.randrange(len(ASK_NAME))
        key = f"name/{name}/{form}/{ask}"
        question = Question("system_name", key, ASK_NAME[ask], f"I am {name}.")
        return said("system_name", "name", NAMED[form].format(n=name), question)
    if i < 0.9:
        word, form, ask = rng.choice(SECRETS), rng.randrange(3), rng.randrange(4)
        what = "password" if form == 2 else "secret word"
        prompt = ASK_SECRET[ask].replace("secret word", what).replace("password", what)
        key = f"secret/{word}/{form}/{ask}"
        question = Question("system_name", key, prompt, f"The {what} is {word}.")
        return said("system_name", "secret", TELL_SECRET[form].format(w=word), question)
    ask_name = rng.choice(ASK_NAME)
    question = Question("system_name", f"plain/{ask_name}", ask_name, IDENTITY)
    return said("system_name", "plain", rng.choice(PLAIN), question)


FORMS = (styled, named, limited)
WEIGHTS = (74, 16, 10)


def draw_chat(rng: Random, draw: Draw) -> Chat:
    """Draw a chat with a system prompt around questions that ``draw`` makes."""
    return rng.choices(FORMS, WEIGHTS)[0](rng, draw)
