"""Options of a ``oneOf`` that exclude each other, so that any of them is one of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from quire.text.grammars.json_schema import TYPES, find

#: Values, names or types of one option that are looked at: references repeat it at no cost.
MAX_LOOKED_AT = 64
_MAX_REFERENCES = 8
_KINDS = ((bool, "boolean"), (str, "string"), (int | float, "number"), (list, "array"))


def are_exclusive(options: Any, root: dict[str, Any]) -> bool:
    """Return whether no value fits two of a list of schemas, as far as that is plain.

    Their types differ, the values that they list do, a property that they all require has other
    values in each, or each requires one that the others do not allow.

    Args:
        options: The schemas; references are followed.
        root: The whole schema, which references point into.
    """
    if not isinstance(options, list):
        return False
    by_type: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for option in options:
        followed = _followed(option, root)
        for kind in _types(followed):
            by_type[kind].append(followed)
    return all(
        len(alike) == 1
        or _are_disjoint(map(_values, alike))
        or (kind == "object" and _are_told_by_a_property(alike, root))
        for kind, alike in by_type.items()
    )


def _are_told_by_a_property(options: list[dict[str, Any]], root: dict[str, Any]) -> bool:
    required = [_required(option) for option in options]
    if all(required) and all(map(_is_closed, options)):
        properties = [frozenset(map(str, option["properties"])) for option in options]
        needed = all(names <= known for names, known in zip(required, properties, strict=True))
        if needed and _are_disjoint(properties):
            return True
    return any(
        _are_disjoint(_values(_followed(_property(option, name), root)) for option in options)
        for name in frozenset.intersection(*required)
    )


def _are_disjoint(sets: Iterable[frozenset[Any] | None]) -> bool:
    """Return whether sets have nothing in common; False where one is not known."""
    seen: set[Any] = set()
    for found in sets:
        if found is None or seen & found:
            return False
        seen |= found
    return True


def _followed(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """Return the schema that references lead to; an empty one where they do not."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            break
        schema = find(root, schema["$ref"])
    return schema if isinstance(schema, dict) else {}


def _is_closed(schema: dict[str, Any]) -> bool:
    properties = schema.get("properties")
    return (
        schema.get("additionalProperties") is False
        and "patternProperties" not in schema
        and isinstance(properties, dict)
        and len(properties) <= MAX_LOOKED_AT
    )


def _property(schema: dict[str, Any], name: str) -> Any:
    properties = schema.get("properties")
    return properties.get(name) if isinstance(properties, dict) else None


def _required(schema: dict[str, Any]) -> frozenset[str]:
    names = schema.get("required")
    if not isinstance(names, list) or len(names) > MAX_LOOKED_AT:
        return frozenset()
    return frozenset(name for name in names if isinstance(name, str))


def _listed(schema: dict[str, Any]) -> list[Any] | None:
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return listed if isinstance(listed, list) and len(listed) <= MAX_LOOKED_AT else None


def _values(schema: dict[str, Any]) -> frozenset[tuple[str, Any]] | None:
    """Return the values that a schema lists, with their types; None where it does not."""
    listed = _listed(schema)
    if listed is None or any(isinstance(value, list | dict) for value in listed):
        return None
    return frozenset((_type(value), value) for value in listed)


def _types(schema: dict[str, Any]) -> set[str]:
    """Return the types that a schema allows, whole numbers as numbers."""
    kinds, listed = schema.get("type"), _listed(schema)
    if isinstance(kinds, str):
        found = {kinds}
    elif isinstance(kinds, list) and len(kinds) <= MAX_LOOKED_AT:
        found = set(map(str, kinds))
    else:
        found = set(TYPES) if listed is None else set(map(_type, listed))
    return {"number" if kind == "integer" else kind for kind in found}


def _type(value: Any) -> str:
    if value is None:
        return "null"
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "object")
