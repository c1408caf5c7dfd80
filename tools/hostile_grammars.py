"""Random constraints that are meant to hurt their compiler or matcher, by number."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

Constraint = dict[str, Any]


def hostile_grammar(seed: int) -> Constraint:
    """Return ``structured_outputs`` of a number: dear, endless, deep, large, or just odd."""
    random = Random(seed)
    return random.choice(KINDS)(random)


def _size(random: Random, digits: int = 6) -> int:
    return max(1, int(10 ** random.uniform(0, digits)))


def _repetition(random: Random) -> Constraint:
    part = random.choice(
        ["x", "(ab?)", "[a-z]", ".", r"\w", "(a|aa)", "(foo|bar)", "é", r"[^\x00]"]
    )
    tail = random.choice(["", f"y{{{_size(random, 5)}}}", "(.*z)?"])
    return {"regex": f"{random.choice(['', 'a+', '(p|q)'])}{part}{{{_size(random)}}}{tail}"}


def _nested(random: Random) -> Constraint:
    regex = random.choice("ab.")
    for _ in range(random.randint(2, 9)):
        regex = f"({regex}){{{random.randint(0, 2)},{random.randint(3, 12)}}}"
    return {"regex": regex}


def _products(random: Random) -> Constraint:
    size = random.randint(3, 60)
    parts = [f"/(.{{{i}}}a|b)*c{{{i}}}.*/" for i in range(1, size)]
    return {"grammar": "start: T\nT: " + " & ".join(parts)}


def _look_back(random: Random) -> Constraint:
    return {"regex": f"(a|b)*a(a|b){{{random.randint(5, 40)}}}{'(c|d)*' * random.randint(0, 5)}"}


def _lark_rows(random: Random) -> Constraint:
    return {"grammar": f'start: {random.choice(["", "/[pq]/ "])}"a"{{{_size(random, 9)}}}'}


def _ambiguous(random: Random) -> Constraint:
    ways = random.sample(["start start", '"a"', '"aa"', "start start start", "/a+/"], 4)
    return {"grammar": "start: " + " | ".join([*ways, '"a"'])}


def _deep(random: Random) -> Constraint:
    depth = _size(random, 4)
    rules = [f'r{i}: "a" r{i + 1} | "b{i}"' for i in range(depth)]
    return {"grammar": "\n".join(["start: r0", *rules, f'r{depth}: "c"'])}


def _long_constants(random: Random) -> Constraint:
    texts = [random.choice("xyé ") * _size(random, 5) for _ in range(random.randint(1, 3))]
    if random.random() < 0.5:
        return {"choice": texts}
    item = {"type": "array", "items": {"enum": texts}, "minItems": 1, "maxItems": 3}
    return {"json": item}


def _many_names(random: Random) -> Constraint:
    names = [f"name {i}" for i in range(_size(random, 3.3))]
    properties = {name: {"type": random.choice(["string", "integer"])} for name in names}
    return {"json": {"type": "object", "properties": properties}}


def _bounds(random: Random) -> Constraint:
    low = _size(random, 5)
    kind = random.choice(
        [
            {"type": "string", "minLength": low, "maxLength": min(100_000, 2 * low)},
            {"type": "array", "items": {"type": "integer"}, "minItems": low, "maxItems": 100_000},
            {"type": "string", "pattern": f"^(ab|a){{{low}}}$", "maxLength": 100_000},
            {"type": "integer", "multipleOf": random.randint(1, 1000), "minimum": low},
        ]
    )
    return {"json": kind}


def _intersections(random: Random) -> Constraint:
    patterns = [{"type": "string", "pattern": f"[a-z]{{{i}}}b"} for i in range(1, _size(random, 2))]
    return {"json": {"allOf": patterns or [{"type": "string"}]}}


def _broken(random: Random) -> Constraint:
    wrong = ["(", "[", "a{", "(?=x)", "\\", "*", "x{999999999999}", "(?:" * 500, "\\p{Nope}"]
    return {random.choice(["regex", "grammar"]): random.choice(wrong)}


KINDS: list[Callable[[Random], Constraint]] = [
    _repetition,
    _repetition,
    _nested,
    _products,
    _look_back,
    _lark_rows,
    _ambiguous,
    _deep,
    _long_constants,
    _many_names,
    _bounds,
    _intersections,
    _broken,
]
