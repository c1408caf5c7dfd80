"""One HTTP/1.1 connection whose bodies are handed on with the moment they came; no JSON.

httptools parses. A general client (httpx2) was measured at 66 µs of CPU a streamed chunk, which at
32 streams of a small model takes a third of a core away from the server on the same machine.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools

from quire.core.errors import ConfigError

OnBody = Callable[[bytes, float], None]
IDLE_LIMIT = 1024


@dataclass(slots=True)
class Reply:
    """The answer to a request: ``status`` is 0 until the head was read."""

    status: int = 0
    done: bool = False
    on_body: OnBody = field(default=lambda data, now: None)


class Connection(asyncio.Protocol):
    """A connection that carries one request at a time.

    Attributes:
        keep_alive: Whether the connection may carry another request.
        answered: Whether bytes have arrived since the last request was sent.
    """

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.keep_alive = False
        self.answered = False
        self._parser = httptools.HttpResponseParser(self)
        self._reply: Reply | None = None
        self._ended: asyncio.Future[None] | None = None
        self._now = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self._reply is not None and self._reply.status and not self.keep_alive:
            # A body without a length ends with the connection.
            ended = self._reply.done or exc is None
        else:
            ended = False
        if self._ended is not None and not self._ended.done():
            if ended:
                self._ended.set_result(None)
            else:
                self._ended.set_exception(
                    exc or ConnectionError("the server closed the connection")
                )

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        self.answered = True
        if self._reply is None:
            return self.close()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self._ended is not None and not self._ended.done():
                self._ended.set_exception(ConnectionError(f"the answer is not HTTP: {error}"))
            self.close()

    def on_headers_complete(self) -> None:
        assert self._reply is not None
        self._reply.status = self._parser.get_status_code()
        self.keep_alive = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        assert self._reply is not None
        self._reply.on_body(body, self._now)

    def on_message_complete(self) -> None:
        assert self._reply is not None
        self._reply.done = True
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def exchange(self, request: bytes, on_body: OnBody) -> int:
        """Send ``request`` and return the status when the answer is whole.

        Raises:
            ConnectionError: The connection ended before, or the answer is not HTTP.
        """
        if self.transport is None:
            raise ConnectionError("the server closed the connection")
        self.answered = False
        self._reply = Reply(on_body=on_body)
        self._ended = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self.transport.write(request)
        with ExitStack() as undo:
            undo.callback(self.close)
            await self._ended
            undo.pop_all()  # Whole: the connection may carry the next request.
        status = self._reply.status
        self._reply = self._ended = None
        return status

    def close(self) -> None:
        """Drop the connection at once."""
        if self.transport is not None:
            self.transport.abort()
            self.transport = None


class ConnectionPool:
    """Connections to one server; idle ones are used again.

    Args:
        url: ``http(s)://host[:port][/prefix]``.
        headers: Headers of every request.
        verify: Whether to check the TLS certificate.

    Raises:
        ConfigError: ``url`` is not of that form.
    """

    def __init__(self, url: str, headers: dict[str, str], verify: bool = True) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ConfigError(f"[bench] --base-url must be http(s)://host[:port]; got {url!r}.")
        self.host = parts.hostname
        self.port = port or (443 if parts.scheme == "https" else 80)
        self.prefix = parts.path.rstrip("/")
        self.tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self.tls = ssl.create_default_context()
            if not verify:
                self.tls.check_hostname = False
                self.tls.verify_mode = ssl.CERT_NONE
        fixed = {"Host": parts.netloc.rpartition("@")[2], "Accept": "*/*", **headers}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
        self._idle: list[Connection] = []

    async def send(self, method: str, path: str, body: bytes, on_body: OnBody) -> int:
        """Send a request and return the status when the answer is whole.

        Args:
            on_body: A function called with each piece of the body and its ``time.perf_counter()``.

        Raises:
            OSError: The connection failed or broke.
        """
        head = f"{method} {self.prefix}{path} HTTP/1.1\r\n{self._head}"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        request = f"{head}\r\n".encode() + body
        while True:
            connection, is_used = await self._connect()
            try:
                status = await connection.exchange(request, on_body)
                break
            except ConnectionError:
                # A server may close an idle connection at any moment; that fails no request.
                if not is_used or connection.answered:
                    raise
        if connection.keep_alive and len(self._idle) < IDLE_LIMIT:
            self._idle.append(connection)
        else:
            connection.close()
        return status

    async def _connect(self) -> tuple[Connection, bool]:
        """Return a connection and whether it was used before."""
        while self._idle:
            connection = self._idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                return connection, True
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, self.host, self.port, ssl=self.tls)
        return connection, False

    def close(self) -> None:
        """Drop every idle connection."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
