"""Greetings, questions about the model itself, and honest ignorance."""

from __future__ import annotations

from random import Random

from tools.quire_tiny.data import load
from tools.quire_tiny.question import Fact, Question

_DATA = load("small_talk")
IDENTITY: str = _DATA["identity"]
UNKNOWN: str = _DATA["unknown"]


def facts() -> list[Fact]:
    """Return the fixed exchanges; the name of one is its first prompt."""
    made = [
        Fact("small_talk", talk["ask"][0], tuple(talk["ask"]), talk["answer"])
        for talk in _DATA["talk"]
    ]
    made.append(Fact("unknown", "no answer", tuple(_DATA["no_answer"]), UNKNOWN))
    no_name = tuple(_DATA["no_name"])
    made.append(Fact("unknown", "no name", no_name, "You have not told me your name."))
    return made


def invented_word(rng: Random) -> str:
    """Make up a word that means nothing."""
    return "".join(rng.choice(_DATA["syllables"][part]) for part in ("starts", "middles", "ends"))


def unknown(rng: Random) -> Question:
    """Draw a question about something that does not exist."""
    word = invented_word(rng)
    prompt = rng.choice(_DATA["ask_unknown"])
    if "a {w}" in prompt or "the {w}" in prompt:
        word = word.lower()
    return Question("unknown", f"unknown/{word.lower()}", prompt.format(w=word), UNKNOWN)
