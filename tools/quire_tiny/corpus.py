"""The mixture: draws chats and documents of either split, and renders chats by the template.

It owns the proportions; the topic files own the content. Everything follows from the ``Random``
that is passed in, so a seed gives the same corpus on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from random import Random
from typing import Any

from tools.quire_tiny import (
    arithmetic,
    json_and_code,
    multi_turn,
    plain_text,
    small_talk,
    stories,
    system_prompts,
    tool_use,
    units,
)
from tools.quire_tiny.facts import all_facts
from tools.quire_tiny.question import Chat, Message, Question, chat_of

# How often a kind of fact is asked, against one for every other kind.
FACT_WEIGHTS = {"capital": 2.0, "small_talk": 4.0, "unknown": 3.0, "letter": 1.5, "definition": 1.2}


@dataclass(frozen=True)
class Mixture:
    """Shares of the corpus: of the texts, of the chats, and weights of the topics of questions."""

    pages: float
    long_chats: float
    drills: float
    system_prompts: float
    multi_turn: float
    # facts, arithmetic, units, stories, JSON and code, unknown things
    topics: tuple[int, ...]


# Prose takes half of the tokens of the first mixture and is learnt first; facts come second;
# the last mixture has more of what is hardest: sums, and answers changed by a system prompt.
FIRST = Mixture(0.04, 0.04, 0.0, 0.14, 0.14, (50, 26, 7, 4, 9, 4))
SECOND = Mixture(0.015, 0.02, 0.06, 0.18, 0.15, (52, 27, 8, 1, 10, 2))
THIRD = Mixture(0.015, 0.02, 0.05, 0.26, 0.15, (42, 36, 9, 1, 11, 1))
# What is rehearsed while tools are learnt: facts most of all, since they are forgotten first.
REHEARSAL = Mixture(0.015, 0.02, 0.04, 0.22, 0.14, (56, 28, 6, 1, 8, 1))
# Of the turns of chats with tools: two calls among the calls, and no call at all. Both are more
# than the evaluation has, since they are learnt last.
TOOL_TURNS = (0.28, 0.26)
# The share of the training time from which each of them is used.
SCHEDULE = ((0.76, THIRD), (0.4, SECOND), (0.0, FIRST))


def mixture_at(fraction: float) -> Mixture:
    """Return the mixture at a fraction of the training time."""
    return next(mixture for start, mixture in SCHEDULE if fraction >= start)


@cache
def _facts() -> tuple[list[list[Question]], list[float]]:
    """Return the questions of each fact, and running sums of the facts' weights."""
    questions, sums = [], []
    total = 0.0
    for fact in all_facts() + small_talk.facts():
        questions.append(fact.questions())
        total += FACT_WEIGHTS.get(fact.kind, 1.0)
        sums.append(total)
    return questions, sums


def draw_fact(rng: Random) -> Question:
    """Draw a question about a fact, of either split."""
    questions, sums = _facts()
    return rng.choice(rng.choices(questions, cum_weights=sums)[0])


def draw_simple(rng: Random) -> Question:
    """Draw a question with a short answer: a fact, arithmetic or a unit."""
    return rng.choices((draw_fact, arithmetic.draw, units.draw), (70, 23, 7))[0](rng)


def draw_question(rng: Random, mixture: Mixture = FIRST) -> Question:
    """Draw a question of any topic, of either split."""
    topics = (
        draw_fact,
        arithmetic.draw,
        units.draw,
        stories.draw,
        json_and_code.draw,
        small_talk.unknown,
    )
    return rng.choices(topics, mixture.topics)[0](rng)


def with_plain_system(rng: Random, chat: Chat) -> Chat:
    """Give a few chats one of the system prompts that change nothing, since clients send them."""
    if chat.messages[0]["role"] == "system" or rng.random() > 0.08:
        return chat
    system = {"role": "system", "content": rng.choice(system_prompts.PLAIN)}
    return replace(chat, messages=[system, *chat.messages])


def draw_chat(rng: Random, held_out: bool, mixture: Mixture = FIRST) -> Chat:
    """Draw a chat of the wanted split, by rejection."""
    single = 1.0 - mixture.system_prompts - mixture.multi_turn
    while True:
        form = rng.random()
        if form < single:
            chat = chat_of(draw_question(rng, mixture))
        elif form < single + mixture.system_prompts:
            chat = system_prompts.draw_chat(rng, draw_simple)
        else:
            chat = multi_turn.draw_chat(rng, draw_simple)
        if chat.held_out == held_out:
            return with_plain_system(rng, chat)


def render(
    messages: list[Message],
    add_generation_prompt: bool = False,
    tools: Sequence[dict[str, Any]] = (),
) -> str:
    """Write a chat as ChatML; the chat template in the package gives the same text."""
    texts = []
    if tools:
        system = messages[0]["content"] + "\n" if messages[0]["role"] == "system" else ""
        messages = messages[1:] if system else messages
        lines = "".join(json.dumps(t["function"], ensure_ascii=False) + "\n" for t in tools)
        texts.append(f"<|im_start|>system\n{system}<tools>\n{lines}</tools><|im_end|>\n")
    for message in messages:
        role, content = message["role"], tool_use.written(message)
        if role == "tool":
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
        texts.append(f"<|im_start|>{role}\n{content}<|im_end|>\n")
    return "".join(texts) + ("<|im_start|>assistant\n" if add_generation_prompt else "")


def tool_texts(rng: Random, num_texts: int) -> list[str]:
    """Draw chats with tools, of the training split."""
    pairs, plain = TOOL_TURNS
    chats = (tool_use.draw_chat(rng, draw_simple, False, pairs, plain) for _ in range(num_texts))
    return [render(chat.messages, tools=chat.tools) for chat in chats]


def training_texts(rng: Random, num_texts: int, mixture: Mixture = FIRST) -> list[str]:
    """Draw the training mixture: chats, pages of plain text, long conversations, drills."""
    texts = []
    pages, long_chats = mixture.pages, mixture.pages + mixture.long_chats
    drills = long_chats + mixture.drills
    for _ in range(num_texts):
        form = rng.random()
        if form < pages:
            page = plain_text.draw_page(rng, False, rng.choice((1, 1, 2, 3)))
            texts.append(f"{page}<|endoftext|>")
        elif form < long_chats:
            draw = partial(draw_question, mixture=mixture)
            chat = multi_turn.long_chat(rng, draw, rng.randint(3, 8))
            texts.append(render(chat.messages))
        elif form < drills:
            texts.append(f"{arithmetic.drill(rng, rng.randint(4, 12))}<|endoftext|>")
        else:
            texts.append(render(draw_chat(rng, False, mixture).messages))
    return texts


def long_texts(rng: Random, num_texts: int) -> list[str]:
    """Draw conversations and pages long enough to fill two thousand tokens."""
    texts = []
    for _ in range(num_texts):
        if rng.random() < 0.7:
            chat = multi_turn.long_chat(rng, draw_question, 60)
            texts.append(render(chat.messages))
        else:
            texts.append(plain_text.draw_page(rng, False, 20) + "<|endoftext|>")
    return texts
