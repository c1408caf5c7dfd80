"""Random JSON Schemas by number, whose every document is short: any model comes to an end.

The property tests draw theirs from ``tests/integration/schemas.py``; these are the same everywhere.
"""

from __future__ import annotations

from random import Random
from typing import Any

Schema = dict[str, Any]

NAMES = ["a", "name", "full name", "x-y", "größe", 'q"t', "b\\s", "s/l", "</s>", "<s> ", "1", "🙂"]
TEXTS = ["red", "a longer text, with words", " spaces  ", "São Paulo", "東京", "tab\tend", ""]
PATTERNS = ["^[A-Z][a-z]{2,8}$", r"^\d{3}-\d{4}$", "^(foo|ba{1,5}r) ?x$", "^[^a-z]{0,6}$"]
FORMATS = ["date", "time", "date-time", "uuid", "ipv4"]
MAX_DEPTH = 3


def random_schema(seed: int) -> Schema:
    """Return the schema of a number."""
    random = Random(seed)
    schema = _object(random, 0) if random.random() < 0.8 else _any(random, 0)
    return {**schema, "$defs": {"shared": _leaf(random, may_refer=False)}}


def _any(random: Random, depth: int) -> Schema:
    if depth >= MAX_DEPTH or random.random() < 0.5:
        return _leaf(random)
    kind = random.choice([_object, _object, _array, _union])
    return kind(random, depth + 1)


def _object(random: Random, depth: int) -> Schema:
    names = random.sample(NAMES, random.randint(0, 4))
    required = [name for name in names if random.random() < 0.7]
    return {
        "type": "object",
        "properties": {name: _any(random, depth) for name in names},
        "required": required,
        "additionalProperties": False,
    }


def _array(random: Random, depth: int) -> Schema:
    low = random.randint(0, 2)
    return {
        "type": "array",
        "items": _any(random, depth),
        "minItems": low,
        "maxItems": low + random.randint(0, 2),
    }


def _union(random: Random, depth: int) -> Schema:
    return {"anyOf": [_any(random, depth) for _ in range(random.randint(1, 3))]}


def _leaf(random: Random, may_refer: bool = True) -> Schema:
    leaves = [_text, _text, _number, _constant, lambda _: {"type": "boolean"}]
    if may_refer:
        leaves.append(lambda _: {"$ref": "#/$defs/shared"})
    return random.choice(leaves)(random)


def _text(random: Random) -> Schema:
    how = random.randrange(3)
    if how == 0:
        return {"type": "string", "pattern": random.choice(PATTERNS)}
    if how == 1:
        return {"type": "string", "format": random.choice(FORMATS)}
    return {"type": "string", "minLength": random.randint(0, 3), "maxLength": random.randint(3, 12)}


def _number(random: Random) -> Schema:
    low = random.randint(-2000, 2000)
    schema = {"type": "integer", "minimum": low, "maximum": low + random.randint(10, 5000)}
    return schema | ({"multipleOf": random.randint(1, 9)} if random.random() < 0.2 else {})


def _constant(random: Random) -> Schema:
    values = [*TEXTS, True, None, 42, -7, [1, "two"], {"k": "v"}]
    if random.random() < 0.3:
        return {"const": random.choice(values)}
    return {"enum": random.sample(values, random.randint(1, 4))}
