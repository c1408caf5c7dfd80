"""Keywords that programs write into JSON Schemas, as the ones that are enforced say the same.

It refuses nothing: what it does not know stays as it is, for ``quire.text.grammars.json_schema`` to
judge.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeGuard
from urllib.parse import quote, unquote

from quire.text.grammars.json_schema import (
    EXACT,
    FORMATS,
    LARGEST,
    LISTS_OF_SCHEMAS,
    MAX_DEPTH,
    SCHEMAS,
    SCHEMAS_BY_NAME,
    find,
)
from quire.text.grammars.schema_options import are_exclusive

#: Numbers nearer to zero count as zero or as this: the automaton has a state for each digit.
SMALLEST = 1e-40
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
#: Beyond it the automaton needs the other bound, too.
_OPEN = 10**18
#: No answer has as many characters, items or properties.
_NO_BOUND = 2**31 - 1
_MOST = ("maxLength", "maxItems", "maxProperties")
#: Bits of whole numbers, by format; OpenAPI's and schemars' names.
_WIDTHS = {f"{kind}int{bits}": bits for kind in ("", "u") for bits in (8, 16, 32, 64)}
#: Formats that allow every value of their type.
_FREE_FORMATS = frozenset({
    "int", "uint", "float", "double", "decimal", "float32", "float64", "password", "binary",
    "path", "file-path", "directory-path",
})  # fmt: skip
_HEX = "[0-9a-f]"
#: Formats as patterns: base64, and pydantic's versions of a UUID.
_PATTERNS = {
    **dict.fromkeys(
        ("byte", "base64"), "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
    ),
    "base64url": "^([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{2}==|[A-Za-z0-9_-]{3}=)?$",
    **{f"uuid{n}": f"^{_HEX}{{8}}-{_HEX}{{4}}-{n}{_HEX}{{3}}-[89ab]{_HEX}{{3}}-{_HEX}{{12}}$"
       for n in range(1, 9)},
}  # fmt: skip
#: Formats of JSON Schema that are not enforced. Any other one that has a pattern only names it.
_OTHER_FORMATS = frozenset({
    "idn-email", "idn-hostname", "iri", "iri-reference", "json-pointer", "regex",
    "relative-json-pointer", "uri-reference", "uri-template",
})  # fmt: skip
_LABEL = "[a-zA-Z0-9](?:[{0}]{{0,61}}[{1}])?"
#: Zod's patterns that look around, and keywords that allow the same, of durations some.
_WITHOUT_LOOKING: dict[str, dict[str, Any]] = {
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]"
    r"@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$": {
        "pattern": r"^([A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+-]"
        r"@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
    },
    r"^(?=[\s\S]*[\p{Extended_Pictographic}\p{Regional_Indicator}\u20E3])"
    r"[\p{Extended_Pictographic}\p{Emoji_Component}]+$": {
        "pattern": r"^[\p{Extended_Pictographic}\p{Emoji_Component}]*"
        r"[\p{Extended_Pictographic}\p{Regional_Indicator}\u20E3]"
        r"[\p{Extended_Pictographic}\p{Emoji_Component}]*$",
    },
    r"^(?=.{1,253}\.?$)" + _LABEL.format("a-zA-Z0-9-", "a-zA-Z0-9")
    + r"(?:\." + _LABEL.format("-0-9a-zA-Z", "0-9a-zA-Z") + r")*\.?$":
        {"format": "hostname", "maxLength": 253},
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?"
    r"(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$": {"format": "duration"},
}  # fmt: skip
#: A pattern of texts that are more than characters of one class: pydantic's Decimal.
_MORE_THAN = re.compile(r"\^\(\?!\^\[([^\\\]^]+)\]\*\$\)(.*\$)", re.DOTALL)
#: Keywords of which null is a value, or a type's name without its quotes; of others it says
#: nothing, as where lists are empty in Go.
_NULLS = frozenset({"const", "default", "example", "type"})
#: What a reference holds as it is, besides letters and digits.
_IN_REFERENCES = "/~$!&'()*+,;=:@-._?"
#: Numbers that are whole.
_COUNTS = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
    "multipleOf",
)  # fmt: skip
#: Keywords whose schemas evaluate properties and items of the value that they stand at.
_APPLIED = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "contains"})
#: What a regular expression is made of, as far as classes go.
_TOKEN = re.compile(r"\\.|\[\^\]|\[\^?|\]|&&|~~|.|\\", re.DOTALL)


def enforceable_form(schema: dict[str, Any]) -> dict[str, Any]:
    """Return ``schema`` in keywords that are enforced, where programs write others.

    The values that it allows are among those that ``schema`` allows, and are the same ones but
    for numbers beyond :data:`quire.text.grammars.json_schema.LARGEST`.
    """
    # An identifier of the whole; references into it stay as they are.
    whole = {key: value for key, value in schema.items() if key != "$id"}
    return _form(whole, schema, MAX_DEPTH)


def _inner(part: Any, root: dict[str, Any], depth: int) -> Any:
    if part == {"not": {}}:
        return False
    return _form(part, root, depth) if isinstance(part, dict) and depth else part


def _form(part: dict[str, Any], root: dict[str, Any], depth: int) -> dict[str, Any]:
    # Items of versions before 2020 are written as those of 2020, which they say they are not.
    made = {
        key: value
        for key, value in part.items()
        if key != "$schema" and (value is not None or key in _NULLS)
    }
    for step in _STEPS:
        step(made, root)
    for keyword, value in made.items():
        if keyword in SCHEMAS_BY_NAME and isinstance(value, dict):
            made[keyword] = {name: _inner(one, root, depth - 1) for name, one in value.items()}
        elif keyword in LISTS_OF_SCHEMAS and isinstance(value, list):
            made[keyword] = [_inner(one, root, depth - 1) for one in value]
        elif keyword in SCHEMAS:
            made[keyword] = _inner(value, root, depth - 1)
    return made


def _numeric_format(part: dict[str, Any], root: dict[str, Any]) -> None:
    """Make bounds of a number's width."""
    name = part.get("format")
    if not isinstance(name, str) or name not in _WIDTHS:
        return
    del part["format"]
    types = part.get("type")
    if "integer" not in (types if isinstance(types, list) else [types]):
        return
    bits, signed = _WIDTHS[name], name[0] != "u"
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    for keyword, bound, tighter in (("minimum", low, max), ("maximum", high, min)):
        given = part.get(keyword, bound)
        if _is_number(given):
            part[keyword] = tighter(given, bound)


def _free_format(part: dict[str, Any], root: dict[str, Any]) -> None:
    name = part.get("format")
    if not isinstance(name, str):
        return
    if name in _PATTERNS and part.get("type") == "string" and "pattern" not in part:
        part["pattern"] = _PATTERNS[name]
    elif name not in _FREE_FORMATS and (
        "pattern" not in part or name in FORMATS or name in _OTHER_FORMATS
    ):
        return
    del part["format"]


def _bounds(part: dict[str, Any], root: dict[str, Any]) -> None:
    for inclusive, exclusive in (_LOWER, _UPPER):  # OpenAPI's of before 3.1
        if part.get(exclusive) is True and inclusive in part:
            part[exclusive] = part.pop(inclusive)
        elif part.get(exclusive) is False:
            del part[exclusive]
    for keywords, others, sign in ((_LOWER, _UPPER, 1), (_UPPER, _LOWER, -1)):
        _include(part, *keywords, sign)
        for keyword in keywords:
            if _is_number(part.get(keyword)):
                part[keyword] = _inside(part[keyword], sign)
                if part[keyword] * sign >= _OPEN and not any(other in part for other in others):
                    part[others[0]] = sign * LARGEST
    for keyword in _MOST:
        if _is_number(part.get(keyword)) and part[keyword] >= _NO_BOUND:
            del part[keyword]


def _counts(part: dict[str, Any], root: dict[str, Any]) -> None:
    part |= {keyword: _whole(part[keyword], 0) for keyword in _COUNTS if keyword in part}


def _multiples(part: dict[str, Any], root: dict[str, Any]) -> None:
    divisor = part.get("multipleOf")
    if (
        part.get("type") == "number"
        and _is_number(divisor)
        and math.isfinite(divisor)
        and divisor % 1 == 0
    ):
        part |= {"type": "integer", "multipleOf": int(divisor)}


def _constants(part: dict[str, Any], root: dict[str, Any]) -> None:
    """Write whole numbers without a point: with one, the last bit may be read wrong."""
    for keyword in ("const", "enum"):
        if keyword in part:
            part[keyword] = _whole(part[keyword], MAX_DEPTH)


def _whole(value: Any, depth: int) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list) and depth:
        return [_whole(one, depth - 1) for one in value]
    if isinstance(value, dict) and depth:
        return {name: _whole(one, depth - 1) for name, one in value.items()}
    return value


def _include(part: dict[str, Any], inclusive: str, exclusive: str, sign: int) -> None:
    """Make the next whole number a bound, where a double next to it is further away."""
    bound = part.get(exclusive)
    if _is_number(bound) and math.isfinite(bound) and abs(bound) >= EXACT:
        low = math.floor(bound * sign) + 1
        given = part.get(inclusive)
        part[inclusive] = sign * (max(low, given * sign) if _is_number(given) else low)
        del part[exclusive]


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _inside(bound: float, sign: int) -> float:
    """Return the nearest bound that is enforced to the digit, inside of ``bound``.

    Args:
        bound: Lowest value where ``sign`` is 1, highest where it is -1.
    """
    low = bound * sign
    if low and abs(low) < SMALLEST:
        return sign * SMALLEST if low > 0 else 0
    if low > LARGEST:
        return bound
    if abs(low) < EXACT:  # whole ones are read to the digit where they are written without a point
        return int(bound) if bound == int(bound) else bound
    # The double must not be below, nor the digits that it is written with.
    double = float(max(low, -LARGEST))
    while min(Decimal(double), Decimal(repr(double))) < low:
        double = math.nextafter(double, math.inf)
    return int(double) * sign


def _names(part: dict[str, Any], root: dict[str, Any]) -> None:
    """Make properties of the names that ``propertyNames`` allows."""
    names = part.get("propertyNames")
    if isinstance(names, dict) and isinstance(names.get("$ref"), str) and len(names) == 1:
        names = find(root, names["$ref"])
    if names is True:
        names = {}
    if not isinstance(names, dict) or names.get("type", "string") != "string":
        return
    rules = set(names) - {"type", "title", "description"}
    value, properties = part.get("additionalProperties", {}), part.get("properties", {})
    if not rules:
        del part["propertyNames"]
    elif not isinstance(properties, dict) or "patternProperties" in part:
        return
    elif rules == {"enum"} and isinstance(names["enum"], list):
        known = [name for name in names["enum"] if isinstance(name, str)]
        if set(properties) <= set(known):
            part["properties"] = {**properties, **{n: value for n in known if n not in properties}}
            part["additionalProperties"] = False
            del part["propertyNames"]
    elif rules == {"pattern"} and not properties and isinstance(names["pattern"], str):
        part["patternProperties"] = {names["pattern"]: value}
        part["additionalProperties"] = False
        del part["propertyNames"]


def _unevaluated(part: dict[str, Any], root: dict[str, Any]) -> None:
    """Name what is left over as usual where no other schema evaluates anything."""
    for keyword, usual in (("Properties", "additionalProperties"), ("Items", "items")):
        left = f"unevaluated{keyword}"
        if left in part and usual not in part and not _APPLIED & part.keys():
            part[usual] = part.pop(left)


def _reference(part: dict[str, Any], root: dict[str, Any]) -> None:
    """Point references that use the whole schema's name into it; write them as addresses."""
    reference, name = part.get("$ref"), root.get("$id")
    if not isinstance(reference, str):
        return
    if isinstance(name, str) and name and reference.partition("#")[0] == name.rstrip("#"):
        reference = f"#{reference.partition('#')[2]}"
    if reference.startswith("#"):
        reference = f"#{quote(unquote(reference[1:]), safe=_IN_REFERENCES)}"
    part["$ref"] = reference


def _options(part: dict[str, Any], root: dict[str, Any]) -> None:
    """Replace ``oneOf`` by ``anyOf`` where no value fits two of the schemas."""
    if "oneOf" in part and "anyOf" not in part and are_exclusive(part["oneOf"], root):
        part["anyOf"] = part.pop("oneOf")


def _tuple(part: dict[str, Any], root: dict[str, Any]) -> None:
    """Write a list of items as JSON Schema has done since 2020."""
    if isinstance(part.get("items"), list) and "prefixItems" not in part:
        part["prefixItems"] = part.pop("items")
        part["items"] = part.pop("additionalItems", True)


def _not_empty(part: dict[str, Any], root: dict[str, Any]) -> None:
    """Make a text that is not empty one of at least a character."""
    least = part.get("minLength", 0)
    if part.get("type") == "string" and part.get("not") == {"const": ""} and _is_number(least):
        part["minLength"] = max(least, 1)
        del part["not"]


def _encoding(part: dict[str, Any], root: dict[str, Any]) -> None:
    """Replace ``contentEncoding`` by a pattern of the encoded bytes."""
    name = part.get("contentEncoding")
    if name in ("base64", "base64url") and part.get("type") == "string":
        part.setdefault("pattern", _PATTERNS[name])
        del part["contentEncoding"]


def _look_around(part: dict[str, Any], root: dict[str, Any]) -> None:
    pattern = part.get("pattern")
    same = _WITHOUT_LOOKING.get(pattern) if isinstance(pattern, str) else None
    if same and all(
        part.get(keyword, value) in (value, pattern) for keyword, value in same.items()
    ):
        del part["pattern"]
        part.update(same)


def _pattern(part: dict[str, Any], root: dict[str, Any]) -> None:
    """Write a look ahead as a second pattern, and classes as the automaton's parser has them."""
    pattern = part.get("pattern")
    if isinstance(pattern, str):
        part["pattern"] = _literal_classes(pattern)
        found = _MORE_THAN.fullmatch(pattern)
        if found is not None and isinstance(part.get("allOf", []), list):
            part["pattern"] = f"^{found[2]}"
            part["allOf"] = [*part.get("allOf", []), {"pattern": f"[^{found[1]}]"}]
    if isinstance(part.get("patternProperties"), dict):
        named = part["patternProperties"].items()
        part["patternProperties"] = {_literal_classes(name): value for name, value in named}


def _literal_classes(pattern: str) -> str:
    """Escape what is only a character in a class of ECMAScript, and opens one in one of Rust."""
    made, inside = [], False
    for token in _TOKEN.findall(pattern):
        if token == "[^]":  # of ECMAScript: any character
            token = r"\[\^]" if inside else r"[\s\S]"
            inside = False
        elif inside and token in ("[", "[^", "&&", "~~"):
            token = "".join(f"\\{character}" for character in token)
        elif token in ("[", "[^"):
            inside = True
        elif token == "]":
            inside = False
        made.append(token)
    return "".join(made)


_STEPS: tuple[Callable[[dict[str, Any], dict[str, Any]], None], ...] = (
    _reference, _options, _counts, _numeric_format, _encoding, _look_around, _free_format,
    _bounds, _multiples, _constants, _names, _unevaluated, _tuple, _not_empty, _pattern
)  # fmt: skip
