"""Conversations of several turns: follow-ups, memory of what the user said, repetition."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tools.quire_tiny.facts import phrasings, table
from tools.quire_tiny.question import Chat, Message, Question, is_held_out, turn

Draw = Callable[[Random], Question]
COLUMNS = ("capital", "continent", "language", "currency")
FIRST = tuple(phrasings(column) for column in COLUMNS)
ANSWERS = (
    "The capital of {k} is {v}.",
    "{K} is in {v}.",
    "The main language of {k} is {v}.",
    "The currency of {k} is the {v}.",
)
SAME_COLUMN = ("And of {k}?", "And {k}?", "What about {k}?", "And what about {k}?")
SAME_COUNTRY = ("And its {c}?", "And the {c}?", "What is its {c}?", "What about the {c}?")
NAMES = (
    *(
        "Anna",
        "Ben",
        "Clara",
        "David",
        "Emma",
        "Tom",
        "Lucy",
        "Max",
        "Nina",
        "Paul",
        "Sara",
        "Leo",
        "Alice",
        "Bob",
    ),
    *(
        "Carlos",
        "Diana",
        "Erik",
        "Fatima",
        "George",
        "Hana",
        "Ivan",
        "Julia",
        "Kenji",
        "Laura",
        "Marie",
        "Omar",
    ),
    *(
        "Peter",
        "Rita",
        "Simon",
        "Tina",
        "Victor",
        "Wendy",
        "Yuki",
        "Zoe",
        "Mark",
        "Kate",
        "John",
        "Lena",
    ),
)
# what the user tells, what the assistant says, what the user asks later, what the assistant answers
MEMORIES = (
    ("My name is {w}.", "Nice to meet you, {w}!", "What is my name?", "Your name is {w}.", NAMES),
    ("I am {w}.", "Nice to meet you, {w}!", "Do you know my name?", "Your name is {w}.", NAMES),
    ("Hello, my name is {w}.", "Nice to meet you, {w}!", "Who am I?", "Your name is {w}.", NAMES),
    ("Hi, I am {w}.", "Nice to meet you, {w}!", "What's my name?", "Your name is {w}.", NAMES),
    ("Call me {w}.", "Nice to meet you, {w}!", "Tell me my name.", "Your name is {w}.", NAMES),
    (
        "My dog is called {w}.",
        "{w} is a nice name for a dog.",
        "What is my dog called?",
        "Your dog is called {w}.",
        ("Rex", "Bello", "Lucky", "Buddy", "Rocky", "Bruno", "Daisy", "Toby"),
    ),
    (
        "My favourite colour is {w}.",
        "I will remember that.",
        "What is my favourite colour?",
        "Your favourite colour is {w}.",
        ("red", "blue", "green", "yellow", "black", "white", "orange", "purple", "pink"),
    ),
    (
        "I live in {w}.",
        "I will remember that.",
        "Where do I live?",
        "You live in {w}.",
        ("Paris", "London", "Rome", "Berlin", "Madrid", "Oslo", "Vienna", "Tokyo", "Cairo", "Lima"),
    ),
    (
        "I am {w} years old.",
        "I will remember that.",
        "How old am I?",
        "You are {w} years old.",
        tuple(map(str, range(5, 99))),
    ),
    (
        "I have {w} apples.",
        "I will remember that.",
        "How many apples do I have?",
        "You have {w} apples.",
        tuple(map(str, range(2, 60))),
    ),
)
WORDS = (
    *(
        "red",
        "blue",
        "apple",
        "tree",
        "house",
        "moon",
        "river",
        "stone",
        "cat",
        "dog",
        "green",
        "sun",
        "happy",
    ),
    *(
        "paper",
        "book",
        "cloud",
        "silver",
        "gold",
        "music",
        "table",
        "chair",
        "window",
        "garden",
        "bread",
        "salt",
    ),
)
REPEAT = ("Repeat after me: {w}", "Please repeat: {w}", "Say: {w}", "Repeat: {w}")
AGAIN = ("Say that again.", "Can you repeat that?", "Repeat that, please.", "Again, please.")
ASKED = ("What did I ask first?", "What was my first question?")
THANKS = ("Thank you.", "Thanks!", "Thank you!", "Thanks a lot!")


def statement(column: int, country: str, value: str) -> str:
    """Return the sentence that answers a column of the country table."""
    upper = country[:1].upper() + country[1:]
    return ANSWERS[column].format(k=country, K=upper, v=value)


def follow_up(rng: Random, draw: Draw) -> Chat:
    """Ask about a country, then about other countries or other columns, in few words."""
    columns = [table("countries", i) for i in range(4)]
    column, country = rng.randrange(4), rng.choice(list(columns[0]))
    # The opening is a question about a fact, so its held-out phrasings stay out of here as well.
    keys = [f"{COLUMNS[column]}/{country}/{i}" for i in range(len(FIRST[column]))]
    opening = rng.choice(
        [p for p, k in zip(FIRST[column], keys, strict=True) if not is_held_out(k)]
    )
    prompt = opening.format(k=country)
    messages = turn(prompt, statement(column, country, columns[column][country]))
    key = ""
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.6:
            form, country = rng.randrange(len(SAME_COLUMN)), rng.choice(list(columns[0]))
            prompt = SAME_COLUMN[form].format(k=country)
        else:
            form, column = (
                rng.randrange(len(SAME_COUNTRY)),
                rng.choice([c for c in range(4) if c != column]),
            )
            prompt = SAME_COUNTRY[form].format(c=COLUMNS[column])
        key = f"follow_up/{column}/{country}/{prompt}"
        messages += turn(prompt, statement(column, country, columns[column][country]))
        if is_held_out(key):
            break
    return Chat("follow_up", key, messages, is_held_out(key))


def memory(rng: Random, draw: Draw) -> Chat:
    """Tell something, talk about other things, and ask for it."""
    i = rng.randrange(len(MEMORIES))
    tell, noted, ask, recall, words = MEMORIES[i]
    word = rng.choice(words)
    messages = turn(tell.format(w=word), noted.format(w=word))
    # "I do not know your name" must not come between the name and the question for it.
    between = [draw(rng) for _ in range(rng.choice((0, 0, 1, 1, 2, 3)))]
    between = [question for question in between if question.kind != "unknown"]
    for question in between:
        messages += turn(question.prompt, question.answer)
    key = f"memory/{i}/{word}"
    held_out = is_held_out(key) or any(q.held_out for q in between)
    return Chat("memory", key, messages + turn(ask, recall.format(w=word)), held_out)


def repeat(rng: Random, draw: Draw) -> Chat:
    """Repeat words that the user gives."""
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 5)))
    messages = turn(rng.choice(REPEAT).format(w=words), words)
    return Chat("repeat", f"repeat/{words}", messages, is_held_out(f"repeat/{words}"))


def again(rng: Random, draw: Draw) -> Chat:
    """Answer a question, then repeat the answer, the first question, or take thanks."""
    questions = [draw(rng) for _ in range(rng.choice((1, 1, 2)))]
    messages: list[Message] = []
    for question in questions:
        messages += turn(question.prompt, question.answer)
    form = rng.random()
    if form < 0.4:
        messages += turn(rng.choice(AGAIN), questions[-1].answer)
    elif form < 0.75:
        messages += turn(rng.choice(ASKED), f'You asked: "{questions[0].prompt}"')
    else:
        messages += turn(rng.choice(THANKS), "You are welcome!")
    key = "again/" + "/".join(q.key for q in questions)
    held_out = is_held_out(key) or any(q.held_out for q in questions)
    return Chat("again", key, messages, held_out)


def next_sum(rng: Random, draw: Draw) -> Chat:
    """Add to or take from the last result, turn by turn."""
    value = rng.randint(2, 50)
    other = rng.randint(1, 50)
    messages = turn(f"What is {value} + {other}?", f"{value} + {other} = {value + other}")
    keys = [f"add/{min(value, other)}/{max(value, other)}"]
    value += other
    for _ in range(rng.randint(1, 3)):
        other = rng.randint(1, 20)
        if rng.random() < 0.5 or other > value:
            prompt = rng.choice(("Now add {n}.", "Add {n} to that.", "And plus {n}?")).format(
                n=other
            )
            keys.append(f"add/{min(value, other)}/{max(value, other)}")
            answer, value = f"{value} + {other} = {value + other}", value + other
        else:
            prompt = rng.choice(("Now subtract {n}.", "Take away {n}.", "And minus {n}?")).format(
                n=other
            )
            keys.append(f"subtract/{value}/{other}")
            answer, value = f"{value} - {other} = {value - other}", value - other
        messages += turn(prompt, answer)
    return Chat("next_sum", "/".join(keys), messages, any(map(is_held_out, keys)))


FORMS = (follow_up, memory, repeat, again, next_sum)
WEIGHTS = (36, 24, 12, 16, 12)


def draw_chat(rng: Random, draw: Draw) -> Chat:
    """Draw a conversation; ``draw`` makes the unrelated questions in between."""
    return rng.choices(FORMS, WEIGHTS)[0](rng, draw)


def long_chat(rng: Random, draw: Draw, num_turns: int) -> Chat:
    """Draw a long conversation of unrelated questions, all of the training split."""
    messages: list[Message] = []
    while len(messages) < 2 * num_turns:
        question = draw(rng)
        if not question.held_out:
            messages += turn(question.prompt, question.answer)
    return Chat("long", "", messages, False)
