"""Check of JSON Schemas: finds the places that cannot be enforced token by token.

JSON Schema 2020-12. A keyword is enforced, says nothing about validity, or is refused: an answer
that a validator then rejects is worse than none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, NamedTuple
from urllib.parse import unquote

from quire.core.errors import RequestError

#: Schemas nested deeper than this are refused.
MAX_DEPTH = 48
#: The automaton for "divisible by" has as many states as the divisor.
MAX_MULTIPLE_OF = 1000
#: Items, characters or properties that a bound may name.
MAX_BOUND = 100_000
#: The largest double within 64 bits with a sign: bounds of numbers are at most this in size.
LARGEST = 2**63 - 1024
#: Whole numbers below it are doubles.
EXACT = 2**53

TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"}
)
ANNOTATIONS = frozenset(
    {
        "title", "description", "default", "examples", "example", "deprecated", "readOnly",
        "writeOnly", "$comment", "$schema", "id", "discriminator",
    }
)  # fmt: skip
_TEXTS = frozenset({"enum", "const", "properties", "required"})
SCHEMAS_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions"})
LISTS_OF_SCHEMAS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
SCHEMAS = frozenset({"items", "additionalProperties"})
_BOUNDS = frozenset({"minLength", "maxLength", "minItems", "maxItems", "maxProperties"})
_LIMITS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})

#: What an automaton has no state for, and escapes of Python's and ECMAScript's that it does not
#: know; what else may be escaped is passed over.
_BEYOND = re.compile(r"(\(\?(?:<?[=!]|>)|\\[1-9kcZbB])|\\.|.", re.DOTALL)
#: Why a regular expression is refused that :func:`ends_in_escape`.
OPEN_ESCAPE = "a regular expression must not end in a backslash that escapes nothing"

Check = Callable[[Any, dict[str, Any], dict[str, Any]], str | None]


class Problem(NamedTuple):
    """A part of a schema that cannot be enforced.

    Attributes:
        pointer: JSON Pointer to a keyword, or to a schema.
        rule: The reason why it cannot be enforced.
        value: The JSON value that stands there.
        is_schema: Whether a schema stands there.
    """

    pointer: str
    rule: str
    value: Any
    is_schema: bool = False


def check_schema(schema: Any) -> None:
    """Refuse a schema that cannot be enforced in full.

    Raises:
        RequestError: The message holds a JSON Pointer to the keyword, and why.
    """
    for pointer, rule, value, _ in problems(schema):
        raise RequestError(
            f"[structured_outputs.json] at #{pointer}: {rule}; got {value!r:.80}.",
            "structured_outputs",
        )


def problems(schema: Any) -> Iterator[Problem]:
    """Yield what of a schema cannot be enforced; nothing inside of that."""
    if not isinstance(schema, dict):
        yield Problem("", "a schema must be an object", schema, True)
        return
    pending: list[tuple[str, Any, int]] = [("", schema, 0)]
    seen: set[str] = set()
    while pending:
        pointer, part, depth = pending.pop()
        if isinstance(part, bool) or pointer in seen:
            continue
        seen.add(pointer)
        if not isinstance(part, dict):
            yield Problem(pointer, "a schema must be an object, true or false", part, True)
            continue
        if depth > MAX_DEPTH:
            yield Problem(pointer, f"schemas must nest at most {MAX_DEPTH} deep", depth, True)
            continue
        for keyword, value in part.items():
            where = f"{pointer}/{_escape(keyword)}"
            reason = _reason(keyword, value, part, schema)
            if reason is not None:
                yield Problem(where, reason, value)
                continue
            pending += ((at, inner, depth + 1) for at, inner in _inside(where, keyword, value))
            if keyword == "$ref":  # wherever it points, also where no schema would be looked for
                pending.append((value.removeprefix("#"), find(schema, value), depth + 1))
        if _leads_back(pointer, part, schema):
            rule = "references must not lead back to themselves"
            yield Problem(f"{pointer}/$ref", rule, part["$ref"])


def _reason(keyword: str, value: Any, part: dict[str, Any], schema: dict[str, Any]) -> str | None:
    """Say why a keyword cannot be enforced; None when it can or need not."""
    if keyword in _TEXTS and _needs_escapes(value):
        return "control characters in it take \\u escapes, which are not generated"
    check = _CHECKS.get(keyword)
    if check is not None:
        return check(value, part, schema)
    if keyword in ANNOTATIONS or (keyword.startswith("x-") and keyword != "x-guidance"):
        return None
    if keyword == "nullable":
        return None if value is False else 'OpenAPI\'s null must be a type: ["string", "null"]'
    return "this keyword cannot be enforced"


def _inside(where: str, keyword: str, value: Any) -> Iterator[tuple[str, Any]]:
    if keyword in SCHEMAS_BY_NAME:
        yield from ((f"{where}/{_escape(name)}", inner) for name, inner in value.items())
    elif keyword in LISTS_OF_SCHEMAS:
        yield from ((f"{where}/{index}", inner) for index, inner in enumerate(value))
    elif keyword in SCHEMAS:
        yield where, value


def _needs_escapes(value: Any) -> bool:
    text = json.dumps(value, ensure_ascii=False)
    return "\\u" in text.replace("\\\\", "") or "\x7f" in text


def _constant(value: Any, part: dict[str, Any], schema: dict[str, Any]) -> str | None:
    if all(_is_exact(number) for number in _numbers(value)):
        return None
    return "numbers in it must be doubles within the range of int64, as they are written"


def _numbers(value: Any) -> Iterator[float]:
    """Yield the numbers in a value."""
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, list):
            pending += one
        elif isinstance(one, dict):
            pending += one.values()
        elif isinstance(one, int | float) and not isinstance(one, bool):
            yield one


def _is_exact(number: float) -> bool:
    """Return whether a number is the same once it was read as a double and written."""
    if abs(number) < EXACT:
        return True
    return abs(number) <= LARGEST and Decimal(repr(float(number))) == Decimal(number)


def _type(value: Any, part: dict[str, Any], schema: dict[str, Any]) -> str | None:
    names = value if isinstance(value, list) else [value]
    known = names and all(isinstance(name, str) and name in TYPES for name in names)
    return None if known else f"types must be among {', '.join(sorted(TYPES))}"


def _strings(value: Any, part: dict[str, Any], schema: dict[str, Any]) -> str | None:
    good = isinstance(value, list) and all(isinstance(name, str) for name in value)
    return None if good else "it must be a list of names"


def _by_name(value: Any, part: dict[str, Any], schema: dict[str, Any]) -> str | None:
    return None if isinstance(value, dict) else "it must be an object of schemas"


def _pattern_properties(value: Any, part: dict[str, Any], schema: dict[str, Any]) -> str | None:
    if part.get("properties"):
        return "with properties, names that both describe cannot be enforced"
    for reason in filter(None, map(_expression, value if isinstance(value, dict) else ())):
        return reason
    return _by_name(value, part, schema)


def _list(value: Any, part: dict[str, Any], schema: dict[str, Any]) -> str | None:
    return None if isinstance(value, list) and value else "it must be a list that is not empty"


def _enum(value: Any, part: dict[str, Any], schema: dict[str, Any]) -> str | None:
    return _list(value, part, schema) or _constant(value, part, schema)


def _schema(value: Any, part: dict[str, Any], schema: dict[str, Any]) -> str | None:
    return None if isinstance(value, dict | bool) else "it must be one schema"


def _bound(value: Any, part: dict[str, Any], schema: dict[str, Any]) -> str | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    good = whole and 0 <= value <= MAX_BOUND
    return None if good else f"it must be a whole number up to {MAX_BOUND}"


def _min_properties(value: Any, part: dict[str, Any], schema: dict[str, Any]) -> str | None:
    required = part.get("required")
    num_names = len(required) if isinstance(required, list) else 0
    if _bound(value, part, schema) is None and value <= num_names + 1:
        return None
    return "it must be at most one more than the names that are required; others may repeat"


def _limit(value: Any, part: dict[str, Any], schema: dict[str, Any]) -> str | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    good = number and abs(value) <= LARGEST
    return None if good else "it must be a number that leaves some within the range of int64"


def _multiple_of(value: Any, part: dict[str, Any], schema: dict[str, Any]) -> str | None:
    if part.get("type") != "integer":
        return 'it can be enforced with "type": "integer" only'
    whole = isinstance(value, int) and not isinstance(value, bool)
    good = whole and 1 <= value <= MAX_MULTIPLE_OF
    return None if good else f"it must be a whole number from 1 to {MAX_MULTIPLE_OF}"


def _pattern(value: Any, part: dict[str, Any], schema: dict[str, Any]) -> str | None:
    return _expression(value) if isinstance(value, str) else "it must be a regular expression"


def _expression(pattern: str) -> str | None:
    if ends_in_escape(pattern):
        return OPEN_ESCAPE
    found = next(filter(None, _BEYOND.findall(pattern)), "")
    return f"{found} of a regular expression cannot be enforced" if found else None


def ends_in_escape(pattern: str) -> bool:
    """Return whether the last backslash of a regular expression escapes nothing.

    The automaton's parser takes what it joins to the expression for the escaped character.
    """
    return (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 1


def _format(value: Any, part: dict[str, Any], schema: dict[str, Any]) -> str | None:
    return (
        None
        if isinstance(value, str) and value in FORMATS
        else f"formats must be among {', '.join(sorted(FORMATS))}"
    )


def _ref(value: Any, part: dict[str, Any], schema: dict[str, Any]) -> str | None:
    if not isinstance(value, str) or not (value == "#" or value.startswith("#/")):
        return "references must point into this schema (#/...)"
    return None if find(schema, value) is not None else "it points at nothing"


_CHECKS: dict[str, Check] = {
    "type": _type,
    "enum": _enum,
    "const": _constant,
    "required": _strings,
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "format": _format,
    "$ref": _ref,
    **dict.fromkeys(SCHEMAS_BY_NAME, _by_name),
    **dict.fromkeys(LISTS_OF_SCHEMAS, _list),
    **dict.fromkeys(SCHEMAS, _schema),
    **dict.fromkeys(_BOUNDS, _bound),
    "minProperties": _min_properties,
    **dict.fromkeys(_LIMITS, _limit),
    "patternProperties": _pattern_properties,
}


def find(schema: Any, reference: str) -> Any:
    """Return what ``#/...`` points at in ``schema``; None when there is nothing."""
    found = schema
    for name in reference.removeprefix("#").split("/")[1:]:
        name = unescaped(name)
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        elif isinstance(found, dict) and name in found:
            found = found[name]
        else:
            return None
    return found


def _leads_back(pointer: str, part: dict[str, Any], schema: dict[str, Any]) -> bool:
    seen, reference = {pointer}, part.get("$ref")
    while isinstance(reference, str):
        if reference.removeprefix("#") in seen:
            return True
        seen.add(reference.removeprefix("#"))
        target = find(schema, reference)
        reference = target.get("$ref") if isinstance(target, dict) else None
    return False


def unescaped(name: str) -> str:
    """Return a name as it is, of a part of a pointer in a reference."""
    return unquote(name).replace("~1", "/").replace("~0", "~")


def _escape(name: str) -> str:
    return str(name).replace("~", "~0").replace("/", "~1").replace("%", "%25")
