"""Request bytes to a checked struct, with errors that name the offending field.

Fields are told apart first; each one that the struct knows is decoded once, to a plain value, and
these become the struct. Of the other fields, which may not be many, only the names are looked at.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from quire.core.built_types import built
from quire.core.errors import RequestError
from quire.protocol.body_limits import check_field
from quire.protocol.openai.chat_completion import Message, TextPart
from quire.protocol.request_fields import find_ignored

T = TypeVar("T", bound=msgspec.Struct)
#: The structs that a field may hold.
Kinds: TypeAlias = tuple[type[msgspec.Struct], ...]

_PATH = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
_INDEX = re.compile(r"\[[^\]]*\]")
_MISSING = re.compile(r"missing required field `([^`]+)`")
#: Of a body, known or not; each is an object to create and a name to look up.
MAX_FIELDS = 4096
#: Characters of what is told of a wrong value.
MAX_SAID = 500
#: Whole numbers up to it have one float each.
MAX_EXACT = 2.0**53


class _FieldName(str):
    """A key type for which msgspec calls a hook at each field, before it decodes the next."""


class _TooManyFields(Exception):
    """A body has more than :data:`MAX_FIELDS`."""


def decode_json(data: bytes) -> dict[str, msgspec.Raw]:
    """Split a JSON object into its fields, whose values are not decoded yet.

    Raises:
        RequestError: The data is not UTF-8, not JSON or not an object, or has too many fields.
    """
    num_fields = itertools.count(1)

    def named(kind: type[_FieldName], name: str) -> _FieldName:
        if next(num_fields) > MAX_FIELDS:
            raise _TooManyFields
        return kind(name)

    with _errors_named():
        # msgspec checks only the strings it keeps; a bad byte in an ignored one must not pass.
        data.decode()
        try:
            fields = msgspec.json.decode(data, type=dict[_FieldName, msgspec.Raw], dec_hook=named)
        except _TooManyFields:
            raise RequestError(f"[body] may hold at most {MAX_FIELDS} fields; got more.") from None
    return {str(name): value for name, value in fields.items()}


def to_struct(fields: Mapping[str, msgspec.Raw], kind: type[T]) -> tuple[T, list[str]]:
    """Make the fields of a JSON object a ``kind`` and name those that it does not know.

    Returns:
        The request, and the unknown fields by path (``messages[].foo``).

    Raises:
        RequestError: A wrong type, or a refused field; ``param`` is its path.
    """
    kind = built(kind)
    known = _known_fields(kind)
    values: dict[str, Any] = {
        name: _decode_value(name, raw, kind) if name in known.names else raw
        for name, raw in fields.items()
    }
    ignored = find_ignored(values, known.supported, known.refused)
    with _errors_named(kind=kind):
        try:
            request = msgspec.convert(values, kind, str_keys=True)
        except msgspec.ValidationError as error:
            if "got `float`" not in str(error):
                raise
            request = msgspec.convert(_with_whole_numbers(values), kind, str_keys=True)
    for name, kinds, refused in known.structs:
        value = values.get(name)
        if refused and value is not None:
            supported = frozenset(kinds[0].__struct_fields__)
            ignored += find_ignored(value, supported, refused, f"{name}.")
        elif value is not None:
            ignored += dict.fromkeys(_unknown(value, kinds, name))
    return request, ignored


def _with_whole_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields, and fields of objects in them, with ``16`` for ``16.0``.

    Languages without whole numbers write settings so; pydantic and Go's clients read them.
    """
    return {
        name: _with_whole_number(value)
        if not isinstance(value, dict)
        else {key: _with_whole_number(item) for key, item in value.items()}
        for name, value in values.items()
    }


def _with_whole_number(value: Any) -> Any:
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) <= MAX_EXACT
    return int(value) if is_whole else value


def decode_body(data: bytes, kind: type[T]) -> tuple[T, list[str]]:
    """Decode a JSON object to a ``kind``; see :func:`decode_json` and :func:`to_struct`."""
    return to_struct(decode_json(data), kind)


def _decode_value(name: str, raw: msgspec.Raw, kind: type[msgspec.Struct]) -> Any:
    check_field(name, raw)
    with _errors_named(name):
        try:
            return msgspec.json.decode(raw)
        except msgspec.ValidationError:  # a number that no float holds: the struct knows its path
            msgspec.json.decode(b"{%b:%b}" % (msgspec.json.encode(name), bytes(raw)), type=kind)
            raise


@contextmanager
def _errors_named(
    field: str | None = None, kind: type[msgspec.Struct] | None = None
) -> Iterator[None]:
    """Turn msgspec's errors into errors of a request that name the place, or else ``field``.

    Where ``kind`` has names for a value, they name these, too.
    """
    try:
        yield
    except msgspec.ValidationError as error:
        text = str(error)
        path, missing = _PATH.search(text), _MISSING.search(text)
        names = [path.group(1) if path else "", missing.group(1) if missing else ""]
        param = ".".join(name for name in names if name) or field
        said = _PATH.sub("", text)
        if len(said) > MAX_SAID:  # it holds what the client sent
            said = f"{said[:MAX_SAID]}..."
        names = _names_at(kind, param or "") if said.startswith("Invalid") and kind else []
        if names:
            said = f"{said}. Send {'one of ' if len(names) > 1 else ''}{', '.join(names)}"
        raise RequestError(f"[{param or 'body'}] {said}.", param) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"[body] must be valid UTF-8 JSON; {error}.") from error
    except RecursionError as error:
        raise RequestError("[body] is nested too deeply.") from error


@dataclass(frozen=True, slots=True)
class _KnownFields:
    """The known fields of one kind of request.

    Attributes:
        names: Names of the fields whose values are looked at.
        supported: Names of the fields that are used.
        refused: Names of the fields that are refused, with their neutral values.
        structs: Fields that hold a struct, the kinds it may be of, and its refused fields.
    """

    names: frozenset[str]
    supported: frozenset[str]
    refused: Mapping[str, tuple[Any, ...]]
    structs: list[tuple[str, Kinds, dict[str, tuple[Any, ...]]]]


@functools.cache
def _known_fields(kind: type[msgspec.Struct]) -> _KnownFields:
    refused: Mapping[str, tuple[Any, ...]] = getattr(kind, "refused", {})
    structs = [
        (
            name,
            kinds,
            {
                path.removeprefix(f"{name}."): neutral
                for path, neutral in refused.items()
                if path.startswith(f"{name}.")
            },
        )
        for name, kinds in _structs_in(kind).items()
    ]
    fields = frozenset(kind.__struct_encode_fields__)
    names = fields.union(("best_of",), (path.partition(".")[0] for path in refused))
    return _KnownFields(names, fields - refused.keys(), refused, structs)


def _unknown(value: Any, kinds: Kinds, path: str) -> Iterator[str]:
    """Yield the paths of fields inside ``value`` that neither its kind nor a struct in it knows."""
    if isinstance(value, list):
        for item in value:
            yield from _unknown(item, kinds, f"{path}[]")
    elif isinstance(value, dict):
        kind = _kind_of(value, kinds)
        inside = _structs_in(kind)
        known = (*kind.__struct_encode_fields__, kind.__struct_config__.tag_field)
        for name, item in value.items():
            if name not in known:
                yield f"{path}.{name}"
            elif name in inside:
                yield from _unknown(item, inside[name], f"{path}.{name}")


def _kind_of(value: dict[str, Any], kinds: Kinds) -> type[msgspec.Struct]:
    """Return the struct that an object is: the one whose tag it has, where they have tags."""
    for kind in kinds if len(kinds) > 1 else ():
        config = kind.__struct_config__
        if config.tag_field is not None and value.get(config.tag_field) == config.tag:
            return kind
    return kinds[0]


@functools.cache
def _structs_in(kind: type[msgspec.Struct]) -> dict[str, Kinds]:
    """Return the fields of a struct that hold a struct, or a list of such, with its kinds."""
    found = {name: _structs_of(hint) for name, hint in get_type_hints(kind).items()}
    if kind is Message:
        found["content"] = (TextPart,)
    return {name: kinds for name, kinds in found.items() if kinds}


def _names_at(kind: type[msgspec.Struct], path: str) -> list[str]:
    """Return the names that the value at a path may be."""
    kinds: Kinds = (kind,)
    *outer, last = _INDEX.sub("", path).split(".")
    for name in outer:
        kinds = tuple(inner for one in kinds for inner in _structs_in(one).get(name, ()))
    found: list[str] = []
    for one in kinds:
        config = one.__struct_config__
        if last == config.tag_field:
            found.append(str(config.tag))
        elif last in (hints := get_type_hints(one)):
            found += map(str, _literals(hints[last]))
    return list(filter(None, dict.fromkeys(found)))


def _literals(hint: Any) -> Iterator[Any]:
    if get_origin(hint) is Literal:
        yield from get_args(hint)
    else:
        for part in get_args(hint):
            yield from _literals(part)


def _structs_of(hint: Any) -> Kinds:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return (hint,)
    return tuple(kind for part in get_args(hint) for kind in _structs_of(part))
