"""What the corpus is made of: questions, chats, and the rule that keeps some questions held out.

A question is held out when the hash of its *key* says so. A key names the underlying task and,
where the fact itself can only be memorised, the phrasing: ``capital/France/2`` or ``add/37/48``.
It owns no content; the topic files do.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from random import Random
from typing import Any

Message = dict[str, Any]
HELD_OUT_PERCENT = 6


def is_held_out(key: str) -> bool:
    """Say whether the question named ``key`` belongs to the evaluation and never to training."""
    digest = hashlib.blake2b(key.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % 100 < HELD_OUT_PERCENT


@dataclass(frozen=True)
class Question:
    """One question and its only accepted answer.

    ``kind`` groups questions in the evaluation; ``short`` is the answer without its sentence.
    """

    kind: str
    key: str
    prompt: str
    answer: str
    short: str = ""

    @property
    def held_out(self) -> bool:
        """Whether this question belongs to the evaluation."""
        return is_held_out(self.key)


@dataclass(frozen=True)
class Fact:
    """One thing to know, asked in any of ``prompts``, always answered by ``answer``."""

    kind: str
    name: str
    prompts: tuple[str, ...]
    answer: str
    short: str = ""

    def questions(self) -> list[Question]:
        """Return one question per phrasing; at least the first phrasing is trained on."""
        return [
            Question(self.kind, f"{self.kind}/{self.name}/{i}", prompt, self.answer, self.short)
            for i, prompt in enumerate(self.prompts)
        ]


@dataclass(frozen=True)
class Chat:
    """Messages in OpenAI's form; ``held_out`` when any question inside is.

    ``tools`` are what a request would list.
    """

    kind: str
    key: str
    messages: list[Message] = field(default_factory=list)
    held_out: bool = False
    tools: list[dict[str, Any]] = field(default_factory=list)

    @property
    def answer(self) -> str:
        """The text of the last message, which is the assistant's."""
        return self.messages[-1]["content"]


def chat_of(question: Question, system: str | None = None) -> Chat:
    """Return the one-turn chat that asks ``question``."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages += turn(question.prompt, question.answer)
    return Chat(question.kind, question.key, messages, question.held_out)


def turn(prompt: str, answer: str) -> list[Message]:
    """Return a user message and the assistant's answer to it."""
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]


def pick(rng: Random, items: list[Question], held_out: bool) -> Question:
    """Return a random question of the wanted split, by rejection."""
    while True:
        question = rng.choice(items)
        if question.held_out == held_out:
            return question
