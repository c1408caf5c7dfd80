"""Unit conversions with round factors, held out by the value."""

from __future__ import annotations

from random import Random

from tools.quire_tiny.question import Question

# (from, to, factor): one ``from`` is ``factor`` of ``to``.
FACTORS = (
    ("kilometres", "metres", 1000),
    ("metres", "centimetres", 100),
    ("centimetres", "millimetres", 10),
    ("kilograms", "grams", 1000),
    ("tonnes", "kilograms", 1000),
    ("litres", "millilitres", 1000),
    ("hours", "minutes", 60),
    ("minutes", "seconds", 60),
    ("days", "hours", 24),
    ("weeks", "days", 7),
    ("years", "months", 12),
    ("decades", "years", 10),
    ("centuries", "years", 100),
    ("feet", "inches", 12),
    ("yards", "feet", 3),
    ("dollars", "cents", 100),
    ("euros", "cents", 100),
    ("bytes", "bits", 8),
    ("dozens", "pieces", 12),
)
LIMIT = {60: 12, 24: 10, 7: 20, 12: 12, 8: 16, 3: 30}
ASK = (
    "Convert {n} {a} to {b}.",
    "How many {b} are {n} {a}?",
    "How many {b} are in {n} {a}?",
    "What is {n} {a} in {b}?",
    "How much is {n} {a} in {b}?",
    "{n} {a} in {b}",
    "Express {n} {a} in {b}.",
)
ONE = {"feet": "foot", "centuries": "century", "inches": "inch"}


def amount(n: int, unit: str) -> str:
    """Return ``n`` and the unit, singular for one."""
    return f"{n} {ONE.get(unit, unit[:-1])}" if n == 1 else f"{n} {unit}"


def draw(rng: Random) -> Question:
    """Draw one conversion, to the smaller unit or back."""
    large, small, factor = rng.choice(FACTORS)
    n = rng.randint(1, LIMIT.get(factor, 99))
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
