"""Request bytes to a checked struct, with errors that name the offending field.

JSON is decoded once, to plain values: these become the struct, and what the struct does not know
is named from them.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from quire.core.errors import RequestError
from quire.protocol.chat_completion import Message, TextPart
from quire.protocol.request_fields import find_ignored

T = TypeVar("T", bound=msgspec.Struct)

_PATH = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]+)`")


def decode_json(data: bytes) -> dict[str, Any]:
    """Decode a JSON object.

    Raises:
        RequestError: Not UTF-8, not JSON, not an object.
    """
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.ValidationError as error:
        where = _find_infinity(json.loads(data)) if "out of range" in str(error) else None
        raise _to_request_error(error, where) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"[body] must be valid UTF-8 JSON; {error}.") from error
    except RecursionError as error:
        raise RequestError("[body] is nested too deeply.") from error


def to_struct(fields: Mapping[str, Any], kind: type[T]) -> tuple[T, list[str]]:
    """Make a decoded JSON object a ``kind`` and name the fields that it does not know.

    Returns:
        The request, and the unknown fields by path (``messages[].foo``).

    Raises:
        RequestError: A wrong type, or a refused field; ``param`` is its path.
    """
    known = _known_fields(kind)
    ignored = find_ignored(fields, known.supported, known.refused)
    try:
        request = msgspec.convert(fields, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _to_request_error(error) from error
    for name, struct, refused in known.structs:
        value = fields.get(name)
        if refused and value is not None:
            supported = frozenset(struct.__struct_fields__)
            ignored += find_ignored(value, supported, refused, f"{name}.")
        elif value is not None:
            ignored += dict.fromkeys(_unknown(value, struct, name))
    return request, ignored


def decode_body(data: bytes, kind: type[T]) -> tuple[T, list[str]]:
    """Decode a JSON object to a ``kind``; see :func:`decode_json` and :func:`to_struct`."""
    return to_struct(decode_json(data), kind)


def _to_request_error(error: msgspec.ValidationError, where: str | None = None) -> RequestError:
    text = str(error)
    path, missing = _PATH.search(text), _MISSING.search(text)
    names = [path.group(1) if path else "", missing.group(1) if missing else ""]
    param = where or ".".join(name for name in names if name) or None
    return RequestError(f"[{param or 'body'}] {_PATH.sub('', text)}.", param)


def _find_infinity(value: Any, path: str = "") -> str | None:
    """Return where in a decoded body a number is that no float holds."""
    if isinstance(value, dict):
        items = ((f"{path}.{name}".lstrip("."), item) for name, item in value.items())
    elif isinstance(value, list):
        items = ((f"{path}[{index}]", item) for index, item in enumerate(value))
    else:
        return path if isinstance(value, float) and math.isinf(value) else None
    return next((found for where, item in items if (found := _find_infinity(item, where))), None)


@dataclass(frozen=True, slots=True)
class _KnownFields:
    """What is known of the fields of one kind of request.

    Attributes:
        supported: Names that are used.
        refused: Those that are not, with their neutral values.
        structs: Fields that hold a struct, its kind, and its refused fields.
    """

    supported: frozenset[str]
    refused: Mapping[str, tuple[Any, ...]]
    structs: list[tuple[str, type[msgspec.Struct], dict[str, tuple[Any, ...]]]]


@functools.cache
def _known_fields(kind: type[msgspec.Struct]) -> _KnownFields:
    refused: Mapping[str, tuple[Any, ...]] = getattr(kind, "refused", {})
    structs = [
        (
            name,
            struct,
            {
                path.removeprefix(f"{name}."): neutral
                for path, neutral in refused.items()
                if path.startswith(f"{name}.")
            },
        )
        for name, struct in _structs_in(kind).items()
    ]
    return _KnownFields(frozenset(kind.__struct_fields__) - refused.keys(), refused, structs)


def _unknown(value: Any, kind: type[msgspec.Struct], path: str) -> Iterator[str]:
    """Yield the paths of fields inside ``value`` that neither ``kind`` nor a struct in it knows."""
    if isinstance(value, list):
        for item in value:
            yield from _unknown(item, kind, f"{path}[]")
    elif isinstance(value, dict):
        inside = _structs_in(kind)
        for name, item in value.items():
            if name not in kind.__struct_encode_fields__:
                yield f"{path}.{name}"
            elif name in inside:
                yield from _unknown(item, inside[name], f"{path}.{name}")


@functools.cache
def _structs_in(kind: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    """Return the fields of a struct that hold a struct, or a list of such."""
    found = {name: _struct_of(hint) for name, hint in get_type_hints(kind).items()}
    if kind is Message:
        found["content"] = TextPart
    return {name: struct for name, struct in found.items() if struct is not None}


def _struct_of(hint: Any) -> type[msgspec.Struct] | None:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    return next(filter(None, map(_struct_of, get_args(hint))), None)
