"""Arguments that stand as plain text in a call: what their schema makes of them, as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from quire.text.tool_parsers.python_literal import read_literal

#: Schemas within schemas that are followed.
MAX_FOLLOWED = 16
_NAMES = {
    dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null",
    int: "integer", float: "number",
}  # fmt: skip
_WORDS = {"true": True, "false": False, "null": None, "none": None}


def property_types(schema: Mapping[str, Any], name: str) -> frozenset[str]:
    """Return the JSON types that a function's parameter may have; empty when any will do.

    Args:
        schema: The schema of the function's parameters, an object's; anything a client sent.
        name: The parameter's name.
    """
    properties = schema.get("properties")
    inner = properties.get(name) if isinstance(properties, dict) else None
    return frozenset(_types(inner, schema, MAX_FOLLOWED))


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> set[str]:
    if not isinstance(schema, dict) or not depth:
        return set()
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return {one for one in kind if isinstance(one, str)}
    if isinstance(schema.get("enum"), list):
        return {_NAMES.get(type(value), "string") for value in schema["enum"]}
    if "const" in schema:
        return {_NAMES.get(type(schema["const"]), "string")}
    if isinstance(schema.get("$ref"), str):
        return _types(referred(schema["$ref"], root), root, depth - 1)
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            found = [_types(one, root, depth - 1) for one in schema[key][:MAX_FOLLOWED]]
            return set().union(*found) if all(found) else set()
    return set()


def referred(pointer: str, root: Mapping[str, Any]) -> Any:
    """Return what ``#/a/b`` names in ``root``; None when there is none."""
    found: Any = root
    for part in pointer.removeprefix("#").split("/")[1:]:
        found = found.get(part) if isinstance(found, dict) else None
    return found


def argument_json(text: str, types: frozenset[str]) -> str:
    """Return the JSON of an argument that was written as plain text.

    It is a number, a list and so on where its types allow one and the text is one, as JSON or as
    Python writes it; it is text where that is allowed or nothing else fits.

    Args:
        text: The argument as the model wrote it.
        types: The result of :func:`property_types`.
    """
    bare = text.strip()
    if types == {"string"}:
        return as_json(text)
    for value in _readings(bare):
        if not types or _fits(value, types):
            if isinstance(value, float) and types and "number" not in types:
                value = int(value)
            return as_json(value)
    return as_json(text)


def _readings(bare: str) -> list[Any]:
    """Return what a text may mean besides itself."""
    if bare.lower() in _WORDS:
        return [_WORDS[bare.lower()]]
    if bare[:1] not in tuple("[{(-+.0123456789'\""):
        return []
    found = []
    with suppress(ValueError, RecursionError):
        found.append(json.loads(bare, parse_constant=_refuse, parse_float=_finite))
    if not found and bare[:1] in tuple("[{("):
        with suppress(ValueError):
            found.append(read_literal(bare))
    return [value for value in found if not isinstance(value, str)]


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _fits(value: Any, types: frozenset[str]) -> bool:
    name = _NAMES[type(value)]
    return (
        name in types
        or (name == "integer" and "number" in types)
        or (name == "number" and "integer" in types and value.is_integer())
    )


def as_json(value: Any) -> str:
    """Return JSON as Python's ``json.dumps`` writes it, with characters shown where they can be."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(value)
    return text
