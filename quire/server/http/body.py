"""JSON bodies: requests read with a size limit and decoded once, answers written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.core.client import SHARED
from quire.core.errors import RequestError
from quire.protocol.body_limits import check_field
from quire.protocol.decode import decode_json, to_struct
from quire.server.http.http_errors import ApiError
from quire.server.http.unread_bodies import UNREAD
from quire.text.offloading import PROCESS_CHARACTERS, run_by_size

T = TypeVar("T", bound=msgspec.Struct)
#: A body: a JSON object whose values are not decoded yet.
Fields: TypeAlias = dict[str, msgspec.Raw]

MAX_BODY_BYTES = 32 * 1024 * 1024
#: Answers are written in parts of at most that much.
PART_BYTES = 1024 * 1024
MAX_NAMED_FIELDS, MAX_NAME_CHARACTERS = 20, 100
#: What takes as long to decode as a character of a text takes to tokenize.
BYTES_PER_CHARACTER = 16
#: Headers that browsers add to what a page sends, and that no page can leave out.
_OF_BROWSERS = ("origin", "sec-fetch-site", "sec-fetch-mode")


@dataclass(frozen=True, slots=True)
class JsonRequest:
    """An HTTP request whose body has been read.

    Attributes:
        http: The request without its body.
        send: ASGI ``send``, which the answer is sent with.
        fields: The body.
    """

    http: Request
    send: Send
    fields: Fields

    @classmethod
    async def receive(
        cls, scope: Scope, receive: Receive, send: Send, any_type: bool = False
    ) -> JsonRequest:
        """Read the body of an ASGI request; see :func:`read_json`."""
        http = Request(scope, receive)
        return cls(http, send, await read_json(http, any_type))

    @property
    def model(self) -> str | None:
        """The name of the model that the path or the body gives; None without one."""
        name: str | None = self.http.path_params.get("model")
        return name or model_name(self.fields)

    async def answer(self, response: Response) -> None:
        """Send a whole response."""
        await response(self.http.scope, self.http.receive, self.send)


def model_name(fields: Fields) -> str | None:
    """Return the name of the model in a body, None if there is none.

    Raises:
        RequestError: The name is not a text, or too long. It is checked here because a model
            would be loaded before its route checks it.
    """
    if "model" not in fields:
        return None
    check_field("model", fields["model"])
    try:
        found: str | None = msgspec.json.decode(fields["model"], type=str | None)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        got = bytes(fields["model"])[:40].decode(errors="replace")
        raise RequestError(f"[model] must be a text; got {got}.", "model") from None
    return found


async def read_any_type(scope: Scope, receive: Receive, send: Send) -> JsonRequest:
    """Read an ASGI request whose body need not be declared as JSON; see :func:`read_json`."""
    return await JsonRequest.receive(scope, receive, send, any_type=True)


async def read_json(
    request: Request, any_type: bool = False, max_bytes: int | None = None
) -> Fields:
    """Return the fields of a body.

    Args:
        request: A request whose body has not been read.
        any_type: Whether any content type is taken, unless a web page may have sent the request.
        max_bytes: Most bytes that the body may have; None for the limit of every body.

    Raises:
        ApiError: 413 for a body that is too large, 415 for one that is compressed or whose
            content type is not JSON.
        RequestError: The body is not a JSON object.
    """
    check_media_type(request, any_type)
    body = await read_body(request, max_bytes)
    return await decode_in_turn(request.scope, body, decode_json)


async def decode_in_turn(scope: Scope, body: bytes, decode: Callable[[bytes], Fields]) -> Fields:
    """Return the fields that ``decode`` finds in a body; a large one does not block the event loop.

    Raises:
        RequestError: The same as in ``decode``.
        CapacityError: The client's waiting texts reach a limit.
    """
    key = scope.get("api_key")
    client = SHARED if key is None else key.client
    size = min(len(body) // BYTES_PER_CHARACTER, PROCESS_CHARACTERS - 1)
    return await run_by_size(size, client.client_id, partial(decode, body))


def check_media_type(request: Request, any_type: bool = False) -> None:
    """Refuse a body that is not declared as JSON; see :func:`read_json`."""
    media_type = _media_type(request.headers.get("content-type", ""))
    # A web page may send a form or text to this machine without asking; JSON it may not.
    any_type = any_type and not any(name in request.headers for name in _OF_BROWSERS)
    if not is_json(media_type) and not any_type:
        raise ApiError(
            415, f"[content-type] must be application/json; got {media_type or 'nothing'}."
        )


def is_json(content_type: str) -> bool:
    """Return whether a header ``Content-Type`` says JSON, which no page can without asking."""
    media_type = _media_type(content_type)
    return media_type == "application/json" or media_type.endswith("+json")


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


async def read_body(request: Request, max_bytes: int | None = None) -> bytes:
    """Return a body of at most that many bytes as it was sent; see :func:`read_json`.

    Raises:
        ApiError: 413 too large, 415 compressed, 503 all bodies that arrive have too many bytes.
    """
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", ""):
        raise ApiError(
            415,
            f"[content-encoding] a body must be sent as it is; got {coding[:40]!a}.",
            headers={"Accept-Encoding": "identity"},
        )
    max_bytes = MAX_BODY_BYTES if max_bytes is None else max_bytes
    too_large = ApiError(413, f"[body] must be at most {max_bytes} bytes.")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise too_large
    chunks = []
    with UNREAD.reading(request.scope.get("api_key")) as body:
        async for chunk in request.stream():
            body.add(len(chunk))
            if body.num_bytes > max_bytes:
                raise too_large
            chunks.append(chunk)
        return b"".join(chunks)


def read_fields(
    fields: Mapping[str, msgspec.Raw],
    kind: type[T],
    strict: bool,
    unused: Callable[[T], list[str]] = lambda body: [],
) -> tuple[T, dict[str, str]]:
    """Return the struct of a body, and the response headers that name fields without effect.

    Args:
        fields: The body.
        kind: A struct of :mod:`quire.protocol`.
        strict: Whether such fields are refused instead.
        unused: A function that names the known fields that do nothing for this model.

    Raises:
        RequestError: The content is wrong.
    """
    body, ignored = to_struct(fields, kind)
    ignored += unused(body)
    if not ignored:
        return body, {}
    named = (name[:MAX_NAME_CHARACTERS] for name in ignored[:MAX_NAMED_FIELDS])
    names = [quote(name, safe="[].")[:MAX_NAME_CHARACTERS] for name in named]
    if strict:
        raise RequestError(
            "[body] fields that do nothing are refused under --strict-params; got "
            f"{', '.join(names)}.",
            ignored[0],
        )
    if len(ignored) > MAX_NAMED_FIELDS:
        names.append("...")
    return body, {"X-Ignored-Params": ", ".join(names)}


async def read_fields_in_turn(
    client_id: str,
    fields: Mapping[str, msgspec.Raw],
    kind: type[T],
    strict: bool,
    unused: Callable[[T], list[str]] = lambda body: [],
) -> tuple[T, dict[str, str]]:
    """Do what :func:`read_fields` does; a large body does not block the event loop.

    Raises:
        RequestError: The content is wrong.
        CapacityError: The client's waiting texts reach a limit.
    """
    size = sum(map(len, fields.values())) // BYTES_PER_CHARACTER
    work = partial(read_fields, fields, kind, strict, unused)
    return await run_by_size(min(size, PROCESS_CHARACTERS - 1), client_id, work)


def read_timeout(request: Request) -> float | None:
    """Return the seconds that the header ``X-Request-Timeout`` gives, or None without it.

    Raises:
        ApiError: 400, the header is not a positive number.
    """
    text = request.headers.get("x-request-timeout")
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise ApiError(400, f"[x-request-timeout] must be seconds above 0; got {text[:40]!a}.")
    return seconds


def json_response(value: Any, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response of ``value``; bytes are JSON already, and a response is one already."""
    if isinstance(value, Response):
        value.headers.update(headers or {})
        return value
    content = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return JsonBytes(content, headers=headers, media_type="application/json")


class JsonBytes(Response):
    """A response that is written in parts: a connection copies what it cannot send at once."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; see ASGI."""
        if len(self.body) <= PART_BYTES:
            await super().__call__(scope, receive, send)
            return
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        body = memoryview(self.body)
        for first in range(0, len(body), PART_BYTES):
            part, last = bytes(body[first : first + PART_BYTES]), first + PART_BYTES >= len(body)
            await send({"type": "http.response.body", "body": part, "more_body": not last})
