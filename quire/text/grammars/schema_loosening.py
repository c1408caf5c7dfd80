"""Schemas without what cannot be enforced: of functions that are not strict."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from quire.text.grammars.json_schema import Problem, find, problems, unescaped

#: Keywords of an object, or of an array, that mean something else without each other.
_TOGETHER = (
    {"properties", "patternProperties", "additionalProperties"},
    {"prefixItems", "items"},
)


def loosened(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return a copy of ``schema`` that allows all that it allows, and can be enforced.

    Returns:
        The copy without the keywords that cannot be; None where that is not enough.
    """
    try:
        made = deepcopy(schema)
    except RecursionError:
        return None
    for problem in list(problems(made)):
        if not problem.pointer:
            return None
        _remove(made, problem)
    return made if next(problems(made), None) is None else None


def _remove(root: dict[str, Any], problem: Problem) -> None:
    before, _, last = problem.pointer.rpartition("/")
    parent, name = find(root, f"#{before}"), unescaped(last)
    if problem.is_schema:
        if isinstance(parent, list):
            parent[int(name)] = True
        elif isinstance(parent, dict):
            parent[name] = True
    elif isinstance(parent, dict) and name == "nullable":
        _allow_null(parent)
    elif isinstance(parent, dict):
        for keyword in next((keywords for keywords in _TOGETHER if name in keywords), {name}):
            if keyword != "properties" or name == "properties":
                parent.pop(keyword, None)


def _allow_null(part: dict[str, Any]) -> None:
    """Write ``nullable`` of OpenAPI 3.0 as a type; where none stands, anything goes."""
    kinds, values = part.get("type"), part.get("enum", [])
    if not isinstance(kinds, str) or not isinstance(values, list):
        for keyword in part.keys() - {"$defs", "definitions"}:
            del part[keyword]
        return
    del part["nullable"]
    part["type"] = [kinds, "null"]
    if values:
        part["enum"] = [*values, None]
