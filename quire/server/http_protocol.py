"""HTTP/1.1 on one connection: limits on a request's head, and every refusal in OpenAI's body.

uvicorn's own refusals are plain text and its heads unbounded; routes never see either.
"""

from __future__ import annotations

import http
import sys

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from quire.server.errors import ApiError, to_api_error

MAX_URL_BYTES = 16 * 1024
MAX_HEADERS = 200
#: Of all headers with the URL. One that goes on for ever is found out by the bytes received.
MAX_HEAD_BYTES = 64 * 1024
#: What a refused client gets to read why.
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

    def data_received(self, data: bytes) -> None:
        """Parse what has come; refuse a head that does not end."""
        if self._refused:
            return
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
        self._in_head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be parsed; an exception of ours that stopped the parser says why."""
        failure = sys.exception()
        cause = None if failure is None else failure.__context__
        if isinstance(cause, ApiError | MemoryError):
            self._refuse(to_api_error(cause))
        else:
            self._refuse(ApiError(400, "[http] the request must be valid HTTP/1.1."))

    def _refuse(self, error: ApiError) -> None:
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            body = error.body()
            fields = {
                "content-type": "application/json",
                "content-length": str(len(body)),
                "connection": "close",
                **error.headers,
            }
            head = f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}\r\n"
            head += "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            self.transport.write(head.encode() + b"\r\n" + body)
        self._refused = True
        if self.transport.can_write_eof():
            # Closing on bytes that nobody has read would reset the connection, answer and all.
            self.transport.write_eof()
            self.loop.call_later(LINGER_SECONDS, self.transport.close)
        else:
            self.transport.close()
