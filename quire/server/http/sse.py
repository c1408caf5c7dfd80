"""Server-sent events: the response, its heartbeats and errors, and the bytes of one chunk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import Send

from quire.server.http.http_errors import ErrorForm, to_api_error

DONE = b"data: [DONE]\n\n"
#: An early failure gets its own status; a long wait must not look like a dead server.
HEADERS_WITHIN_SECONDS = 1.0
#: A comment: proxies see that the connection lives, clients skip it.
HEARTBEAT = b": keep-alive\n\n"
#: The HTML standard's advice for comments against proxies that drop silent connections.
KEEP_ALIVE_SECONDS = 15.0
_encode = msgspec.json.encode
#: After the content of most chunks.
_NOTHING_ELSE = b',"logprobs":null,"finish_reason":null}]}\n\n'


@dataclass(frozen=True, slots=True)
class StreamForm:
    """The form in which values follow each other in a stream.

    Attributes:
        media_type: Content type of the response.
        before, after: Bytes around the JSON of each value.
        end: Bytes after the last value.
        comments: Whether clients skip comments.
        errors: Form of an error.
        error_head: Bytes before an event that is an error.
    """

    media_type: str
    before: bytes
    after: bytes
    end: bytes = b""
    comments: bool = True
    errors: ErrorForm = ErrorForm.OPENAI
    error_head: bytes = b""

    def event(self, value: bytes) -> bytes:
        """Return the event of a JSON text."""
        return self.before + value + self.after

    def error(self, error: Exception) -> bytes:
        """Return the event of an exception."""
        return self.error_head + self.event(to_api_error(error).body(self.errors))


_EVENTS = "text/event-stream; charset=utf-8"
OPENAI_EVENTS = StreamForm(_EVENTS, b"data: ", b"\n\n", DONE)
PLAIN_EVENTS = StreamForm(_EVENTS, b"data: ", b"\n\n", errors=ErrorForm.FLAT)
LLAMA_EVENTS = StreamForm(_EVENTS, b"data: ", b"\n\n")
TGI_EVENTS = StreamForm(_EVENTS, b"data:", b"\n\n", errors=ErrorForm.FLAT)
ANTHROPIC_EVENTS = StreamForm(
    _EVENTS, b"data: ", b"\n\n", errors=ErrorForm.ANTHROPIC, error_head=b"event: error\n"
)
LINES = StreamForm("application/x-ndjson", b"", b"\n", comments=False, errors=ErrorForm.FLAT)


async def send_events(
    send: Send,
    events: AsyncGenerator[bytes, None],
    headers: Mapping[str, str],
    keep_alive: float = KEEP_ALIVE_SECONDS,
    form: StreamForm = OPENAI_EVENTS,
) -> None:
    """Send ``events`` as the body of a 200 response and end it as ``form`` says.

    Once the headers are out, an exception of ``events`` cannot become a status any more: it is
    sent as an error event.

    Args:
        send: ASGI ``send`` of the request.
        events: The events, whole.
        headers: More headers of the response.
        keep_alive: Seconds of silence after which a comment is sent; 0 sends none.
        form: Form of the events.

    Raises:
        Exception: ``events`` raised it before the headers were sent.
    """
    fields = {
        "content-type": form.media_type,
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
        **headers,
    }
    raw = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
    async with aclosing(events):
        first = asyncio.ensure_future(anext(events, None))
        try:
            await asyncio.wait({first}, timeout=HEADERS_WITHIN_SECONDS)
            if first.done():
                first.result()
            await send({"type": "http.response.start", "status": 200, "headers": raw})
            body = _Body(send)
            beating = asyncio.ensure_future(body.beat(keep_alive if form.comments else 0))
            try:
                await _send_body(body, first, events, form)
            finally:
                beating.cancel()
                await asyncio.gather(beating, return_exceptions=True)
        finally:
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
    await send({"type": "http.response.body", "body": form.end, "more_body": False})


class _Body:
    """The parts of a body; it knows how long nothing was sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._sent_time = time.monotonic()

    async def write(self, part: bytes) -> None:
        await self._send({"type": "http.response.body", "body": part, "more_body": True})
        self._sent_time = time.monotonic()

    async def beat(self, interval: float) -> None:
        """Write a comment whenever nothing was sent for ``interval`` seconds; until cancelled."""
        while interval > 0:
            silence = time.monotonic() - self._sent_time
            if silence >= interval:
                await self.write(HEARTBEAT)
            else:
                await asyncio.sleep(interval - silence)


async def _send_body(
    body: _Body,
    first: Awaitable[bytes | None],
    events: AsyncGenerator[bytes, None],
    form: StreamForm,
) -> None:
    try:
        event = await first
        while event is not None:
            await body.write(event)
            event = await anext(events, None)
    except Exception as error:
        await body.write(form.error(error))


class ChunkWriter:
    """Writes the chunks of one stream; all that stays the same is encoded once.

    Args:
        identity: ``id``, ``object``, ``created``, ``model`` and what else each chunk repeats.
        content_key: ``delta`` for chat, ``text`` for completions.
    """

    def __init__(self, identity: dict[str, Any], content_key: str) -> None:
        self._head = b"data: " + _encode(identity)[:-1] + b',"choices":['
        self._key = f',"{content_key}":'.encode()
        self._heads: dict[int, bytes] = {}  # up to the content, by choice

    def chunk(
        self,
        index: int,
        content: bytes,
        *,
        logprobs: Any = None,
        finish_reason: str | None = None,
        extra: Mapping[str, Any] | None = None,
        top_level: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Return one event with one choice.

        Args:
            index: Index of the choice.
            content: JSON of the delta or text.
            logprobs: A value that msgspec encodes.
            finish_reason: The reason of the end, None before it.
            extra: More fields of the choice.
            top_level: More fields of the chunk.
        """
        head = self._heads.get(index)
        if head is None:
            head = self._heads[index] = self._head + b'{"index":%d' % index + self._key
        if logprobs is finish_reason is None and not extra and not top_level:
            return head + content + _NOTHING_ELSE
        return b"".join(
            (
                head,
                content,
                b',"logprobs":',
                b"null" if logprobs is None else _encode(logprobs),
                b',"finish_reason":',
                b"null" if finish_reason is None else _encode(finish_reason),
                _members(extra),
                b"}]",
                _members(top_level),
                b"}\n\n",
            )
        )

    def last(self, usage: Any) -> bytes:
        """Return the event without choices that carries the usage."""
        return self._head + b"]" + _members({"usage": usage}) + b"}\n\n"


def _members(fields: Mapping[str, Any] | None) -> bytes:
    return b"," + _encode(fields)[1:-1] if fields else b""
