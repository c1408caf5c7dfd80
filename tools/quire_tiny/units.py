"""Unit conversions with round factors, held out by the value."""

from __future__ import annotations

from random import Random

from tools.quire_tiny.data import load
from tools.quire_tiny.question import Question

_DATA = load("units")

ASK = (
    "Convert {n} {a} to {b}.",
    "How many {b} are {n} {a}?",
    "How many {b} are in {n} {a}?",
    "What is {n} {a} in {b}?",
    "How much is {n} {a} in {b}?",
    "{n} {a} in {b}",
    "Express {n} {a} in {b}.",
)


def amount(n: int, unit: str) -> str:
    """Return ``n`` and the unit, singular for one."""
    return f"{n} {_DATA['singular'].get(unit, unit[:-1])}" if n == 1 else f"{n} {unit}"


def draw(rng: Random) -> Question:
    """Draw one conversion, to the smaller unit or back."""
    large, small, factor = rng.choice(_DATA["factors"])
    n = rng.randint(1, _DATA["limits"].get(str(factor), 99))
    a, b, value, result = large, small, n, n * factor
    if rng.random() < 0.4:
        a, b, value, result = small, large, n * factor, n
    i = rng.randrange(len(ASK))
    prompt = ASK[i].format(n=value, a=a, b=b)
    if value == 1:
        prompt = ASK[i].replace("are {n} {a}", "is {n} {a}").format(n=1, a=amount(1, a)[2:], b=b)
    verb = "is" if value == 1 else "are"
    answer = f"{amount(value, a)} {verb} {amount(result, b)}."
    # Only round factors generalise; the small tables are memorised, so a phrasing is held out.
    key = (
        f"unit/{a}/{b}/{value}"
        if factor % 10 == 0 and factor != 60
        else f"unit/{a}/{b}/{value}/{i}"
    )
    return Question("unit", key, prompt, answer, str(result))
