"""Request bytes to a checked struct, with errors that name the offending field."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from quire.core.errors import RequestError
from quire.protocol.adapted import AdaptedRequest
from quire.protocol.chat_completion import ChatCompletionRequest, Message, TextPart
from quire.protocol.completion import CompletionRequest
from quire.protocol.embedding import EmbeddingRequest
from quire.protocol.request_fields import (
    REFUSED_CHAT,
    REFUSED_COMPLETION,
    REFUSED_EMBEDDING,
    find_ignored,
)
from quire.protocol.responses import REFUSED_RESPONSES, ResponsesRequest

T = TypeVar("T", bound=msgspec.Struct)

_PATH = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]+)`")


def decode_body(body: bytes, kind: type[T]) -> tuple[T, list[str]]:
    """Decode a JSON body into ``kind`` and name the fields nobody knows.

    Args:
        body: UTF-8 JSON, an object.
        kind: A request struct.

    Returns:
        The request, and the unknown fields by path (``messages[].foo``).

    Raises:
        RequestError: Not UTF-8, not JSON, a wrong type, or a refused field; ``param`` is its path.
    """
    fields = _parse(body, dict[str, msgspec.Raw])
    refused: Mapping[str, tuple[Any, ...]] = {}
    if issubclass(kind, ChatCompletionRequest):
        refused = REFUSED_CHAT
    elif issubclass(kind, CompletionRequest):
        refused = REFUSED_COMPLETION
    elif issubclass(kind, EmbeddingRequest):
        refused = REFUSED_EMBEDDING
    elif issubclass(kind, ResponsesRequest):
        refused = REFUSED_RESPONSES
    elif issubclass(kind, AdaptedRequest):
        refused = kind.refused
    ignored = find_ignored(fields, frozenset(kind.__struct_fields__) - refused.keys(), refused)
    request = _parse(body, kind)
    for name, struct in _structs_in(kind).items():
        inside = _below(refused, f"{name}.")
        if inside and getattr(request, name) is not None:
            sent = msgspec.json.decode(fields[name], type=dict[str, msgspec.Raw])
            supported = frozenset(struct.__struct_fields__)
            ignored += find_ignored(sent, supported, inside, f"{name}.")
        elif name in fields:
            ignored += dict.fromkeys(_unknown(msgspec.json.decode(fields[name]), struct, name))
    return request, ignored


def _below(refused: Mapping[str, tuple[Any, ...]], path: str) -> dict[str, tuple[Any, ...]]:
    """Return the refused fields whose path begins with ``path``, by what follows."""
    return {
        name.removeprefix(path): neutral
        for name, neutral in refused.items()
        if name.startswith(path)
    }


def _parse(body: bytes, kind: Any) -> Any:
    try:
        # msgspec checks only the strings it keeps; a bad byte in an ignored one must not pass.
        body.decode()
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        text = str(error)
        path = _PATH.search(text)
        missing = _MISSING.search(text)
        names = [path.group(1) if path else "", missing.group(1) if missing else ""]
        param = ".".join(name for name in names if name) or None
        rule = _PATH.sub("", text)
        raise RequestError(f"[{param or 'body'}] {rule}.", param) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"[body] must be valid UTF-8 JSON; {error}.") from error
    except RecursionError as error:
        raise RequestError("[body] is nested too deeply.") from error


def _unknown(value: Any, kind: type[msgspec.Struct], path: str) -> Iterator[str]:
    """Yield the paths of fields inside ``value`` that ``kind`` and the structs in it have not."""
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
