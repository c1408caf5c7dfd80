"""HTTP/1.1 on one connection: limits on heads, on slow senders, every refusal in OpenAI's body.

uvicorn's own refusals are plain text, its heads unbounded in size and time; routes see none of it.
"""

from __future__ import annotations

import asyncio
import http
import sys
import uuid
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from quire.server.http.errors import ApiError, to_api_error

MAX_URL_BYTES = 16 * 1024
MAX_HEADERS = 200
#: Of all headers with the URL. One that goes on for ever is found out by the bytes received.
MAX_HEAD_BYTES = 64 * 1024
#: From connecting, or from a head's first byte, to its end.
HEAD_SECONDS = 30.0
#: At least this many bytes of a body come in this time (about Apache's 500 bytes a second).
BODY_SECONDS, BODY_BYTES = 30.0, 15_000
#: Time for a refused client to read why.
LINGER_SECONDS = 2.0


def _head_too_large() -> ApiError:
    return ApiError(
        431, f"[headers] must be at most {MAX_HEADERS} of {MAX_HEAD_BYTES} bytes together."
    )


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol; see the module."""

    _head_bytes = 0
    _in_head = False
    _refused = False
    _body_bytes = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head."""
        super().connection_made(transport)
        self._await(HEAD_SECONDS, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what has come; refuse a head that does not end."""
        if self._refused:
            return
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._await(HEAD_SECONDS, self._head_is_late)  # even for line ends alone
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(_head_too_large())
            return
        before = self._head_bytes
        super().data_received(data)
        if self._in_head:
            self._head_bytes = max(self._head_bytes, before + len(data))

    def on_message_begin(self) -> None:
        """Begin to count."""
        self._head_bytes, self._in_head = 0, True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a piece of the URL."""
        super().on_url(url)
        self._head_bytes += len(url)
        if len(self.url) > MAX_URL_BYTES:
            raise ApiError(414, f"[url] must be at most {MAX_URL_BYTES} bytes.")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        super().on_header(name, value)
        self._head_bytes += len(name) + len(value)
        if len(self.headers) > MAX_HEADERS or self._head_bytes > MAX_HEAD_BYTES:
            raise _head_too_large()

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        self._in_head, self._body_bytes = False, 0
        self._await(BODY_SECONDS, self._body_is_late)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait no more: the rest is up to us."""
        self._stop_waiting()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over."""
        self._stop_waiting()
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be parsed; an exception of ours that stopped the parser says why."""
        failure = sys.exception()
        cause = None if failure is None else failure.__context__
        if isinstance(cause, ApiError | MemoryError):
            self._refuse(to_api_error(cause))
        else:
            self._refuse(ApiError(400, "[http] the request must be valid HTTP/1.1."))

    def _await(self, seconds: float, late: Callable[[], None]) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(seconds, late)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_is_late(self) -> None:
        if self._in_head:
            self._refuse(ApiError(408, f"[headers] must end within {HEAD_SECONDS:g} s."))
        else:  # a connection without a request: nothing to answer
            self.transport.close()

    def _body_is_late(self) -> None:
        if self._body_bytes >= BODY_BYTES or self.flow.read_paused:  # paused by us
            self._body_bytes = 0
            self._await(BODY_SECONDS, self._body_is_late)
        elif self.cycle is not None and self.cycle.response_started:
            self.transport.close()
        else:
            rate = f"{BODY_BYTES} bytes in {BODY_SECONDS:g} s"
            self._refuse(ApiError(408, f"[body] must come with at least {rate}."))

    def _refuse(self, error: ApiError) -> None:
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            body = error.body()
            fields = {
                "content-type": "application/json",
                "content-length": str(len(body)),
                "connection": "close",
                "x-request-id": uuid.uuid4().hex,
                **error.headers,
            }
            head = f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}\r\n"
            head += "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            self.transport.write(head.encode() + b"\r\n" + body)
        self._refused = True
        if self.transport.can_write_eof():
            # Closing with bytes unread would reset the connection, and the answer would be lost.
            self.transport.write_eof()
            self.loop.call_later(LINGER_SECONDS, self.transport.close)
        else:
            self.transport.close()
