"""HTTP/1.1 on one connection: limits on heads, on slow senders, every refusal in OpenAI's body.

uvicorn's own refusals are plain text, its heads unbounded in size and time; routes see none of it.
Requests that a client sends without waiting for answers are answered one after another.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from quire.server.http.body import is_json
from quire.server.http.connection_rules import PROBE_CONNECTIONS, ProtocolConfig
from quire.server.http.host_rule import HostError
from quire.server.http.http_errors import ApiError, to_api_error

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
#: Bytes that are parsed at a time, and the requests, headers and pieces of bodies after which the
#: rest waits for the next turn of the loop: a read may have 40,000 chunks of a byte.
PARSED_BYTES, PARSED_AT_ONCE = 4096, 512
CONTENT_TYPE = b"content-type"


def _head_too_large() -> ApiError:
    return ApiError(
        431, f"[headers] must be at most {MAX_HEADERS} of {MAX_HEAD_BYTES} bytes together."
    )


class _Flow(FlowControl):
    """Reads no further while too much of what has come is not parsed.

    Args:
        transport: The connection's.
        ahead: Bytes that are not parsed yet.
    """

    def __init__(self, transport: asyncio.Transport, ahead: bytearray) -> None:
        super().__init__(transport)
        self._ahead = ahead

    def resume_reading(self) -> None:
        if len(self._ahead) <= HIGH_WATER_LIMIT:
            super().resume_reading()


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol; see the module."""

    config: ProtocolConfig
    _head_bytes = 0
    _unended_bytes = 0  # of the header that comes
    _num_heads = 0
    _in_head = False
    _refused = False
    _is_extra = False
    _body_bytes = 0
    _num_parsed = 0
    _parses_on = False  # in the next turn of the loop
    _timer: asyncio.TimerHandle | None = None
    #: What is answered now; those in the pipeline wait for it.
    _running: RequestResponseCycle | None = None

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._ahead = bytearray()

    @property
    def waits_to_write(self) -> bool:
        """Whether all that is unsent waits for the client alone."""
        running = self._running
        ended = running is None or running.response_complete
        return self.flow.write_paused or ended or self.transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self._ahead)
        rules = self.config.rules
        num_extra = len(self.connections) - rules.max_connections
        self._is_extra = num_extra > 0
        if num_extra > PROBE_CONNECTIONS:
            rules.rejections["connections"] += 1
            transport.abort()
            return
        self._await(HEAD_SECONDS, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting, and tell what is being answered; uvicorn tells the last request only."""
        self._stop_waiting()
        self.pipeline.clear()
        self._ahead.clear()
        running = self._running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        """Take the bytes that have arrived; they are parsed in parts."""
        if self._refused:
            return
        self._ahead += data
        if not self._parses_on:
            self._parse_on()
        if len(self._ahead) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def _parse_on(self) -> None:
        """Parse some of the bytes; the rest waits for the answers to requests, or its turn."""
        self._parses_on, self._num_parsed = False, 0
        while self._ahead and not (self.pipeline and not self.cycle.more_body):
            if self._refused or self.transport.get_protocol() is not self:
                self._ahead.clear()
            elif self._num_parsed >= PARSED_AT_ONCE:
                self._parses_on = True
                self.loop.call_soon(self._parse_on)
                return
            else:
                data = bytes(self._ahead[:PARSED_BYTES])
                del self._ahead[:PARSED_BYTES]
                self._parse(data)
        if self.cycle is None or len(self.cycle.body) <= HIGH_WATER_LIMIT:
            self.flow.resume_reading()  # a server that reads on learns when the client leaves

    def _parse(self, data: bytes) -> None:
        """Parse a piece; refuse a head that does not end."""
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._await(HEAD_SECONDS, self._head_is_late)  # even for line ends alone
        if self._in_head and self._head_bytes + self._unended_bytes > MAX_HEAD_BYTES:
            self._refuse(_head_too_large())
            return
        before = self._num_heads, self._head_bytes
        super().data_received(data)
        same = before == (self._num_heads, self._head_bytes)
        self._unended_bytes = self._unended_bytes + len(data) if same else 0

    def on_response_complete(self) -> None:
        """Continue with the next request."""
        super().on_response_complete()
        if not self.pipeline and not self._parses_on and not self.transport.is_closing():
            self._parse_on()

    def on_message_begin(self) -> None:
        """Begin to count."""
        self._head_bytes, self._in_head = 0, True
        self._num_parsed += 1
        self._num_heads += 1
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
        self._num_parsed += 1
        self._head_bytes += len(name) + len(value)
        if len(self.headers) > MAX_HEADERS or self._head_bytes > MAX_HEAD_BYTES:
            raise _head_too_large()

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        self._in_head, self._body_bytes = False, 0
        self._check_head()
        self._await(BODY_SECONDS, self._body_is_late)
        super().on_headers_complete()

    def _check_head(self) -> None:
        """Refuse what the rules of all connections do not allow.

        Raises:
            ApiError: 400, 403, 417, 501 or 503.
        """
        rules = self.config.rules
        self._check_transfer()
        try:
            rules.hosts.check(self.headers, self.parser.get_http_version())
            if self._is_sent_unasked():
                rules.hosts.check_origin(self.headers)
        except HostError as error:
            if error.reason is not None:
                rules.rejections[error.reason] += 1
            raise
        if self._is_extra:
            rules.check_probe(self.url.partition(b"?")[0].decode("latin-1"))

    def _check_transfer(self) -> None:
        """Refuse a body that would have to be decoded, and what is expected besides a go-ahead.

        Raises:
            ApiError: 417 or 501.
        """
        for name, value in self.headers:
            if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                raise ApiError(501, f"[transfer-encoding] must be chunked; got {value[:40]!a}.")
            if name == b"expect" and value.strip().lower() != b"100-continue":
                raise ApiError(417, f"[expect] must be 100-continue; got {value[:40]!a}.")

    def _is_sent_unasked(self) -> bool:
        """Whether a browser sends such a request of any page without asking by CORS first.

        Those are WebSockets and what a form can post. What only reads needs no care: the page does
        not see the answer.
        """
        if self.parser.should_upgrade():
            return True
        types = [value.decode("latin-1") for name, value in self.headers if name == CONTENT_TYPE]
        return self.parser.get_method() == b"POST" and not any(map(is_json, types))

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._body_bytes += len(body)
        self._num_parsed += 1
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait no more: the rest is up to us."""
        self._stop_waiting()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over, unless an earlier request is still being answered on it."""
        running = self._running
        if running is not None and not running.response_complete:
            self._refuse(
                ApiError(400, "[websocket] the upgrade must follow the answers to all requests.")
            )
            return
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
        self._refused = True
        running = self._running
        if running is not None and not running.response_complete and not running.more_body:
            # An earlier request came whole: it is answered, then the connection ends.
            self._stop_waiting()
            self.pipeline.clear()
            running.keep_alive = False
            return
        if running is None or running.response_complete or not running.response_started:
            self.transport.write(error.closing_answer())
        if self.transport.can_write_eof():
            # Closing with bytes unread would reset the connection, and the answer would be lost.
            self.transport.write_eof()
            self.loop.call_later(LINGER_SECONDS, self.transport.close)
        else:
            self.transport.close()
