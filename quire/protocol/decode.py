"""Request bytes to a checked struct, with errors that name the offending field."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from quire.core.errors import RequestError
from quire.protocol.chat_completion import ChatCompletionRequest, Message
from quire.protocol.completion import CompletionRequest
from quire.protocol.embedding import EmbeddingRequest
from quire.protocol.generation import StreamOptions
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
    ignored = find_ignored(fields, frozenset(kind.__struct_fields__) - refused.keys(), refused)
    request = _parse(body, kind)
    ignored += _unknown_inside(fields, "stream_options", StreamOptions)
    if "messages" in kind.__struct_fields__:
        ignored += _unknown_inside(fields, "messages", Message)
    return request, ignored


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


def _unknown_inside(fields: Mapping[str, msgspec.Raw], name: str, kind: Any) -> list[str]:
    raw = fields.get(name)
    value = None if raw is None else msgspec.json.decode(raw)
    items: Iterable[Any] = value if isinstance(value, list) else [value]
    label = f"{name}[]" if isinstance(value, list) else name
    unknown = dict.fromkeys(key for item in items if isinstance(item, dict) for key in item)
    return [f"{label}.{key}" for key in unknown if key not in kind.__struct_fields__]
