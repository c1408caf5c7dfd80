"""A server on quire-tiny, and one whose answers are scripted byte by byte."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.commands import SETTINGS, run_quire
from tests.servers import start_server


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of ``quire serve`` with quire-tiny."""
    flags = ["--memory", "256MiB", "--threads", "1", "--disable-uvicorn-access-log"]
    with start_server(flags, **SETTINGS) as process:
        yield process.wait_ready()
        assert process.end() == 0, process.stderr


@pytest.fixture(scope="session")
def bench() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``quire bench serve`` with arguments."""
    return partial(run_quire, "bench", "serve")


class Script:
    """A TCP server that answers each connection's request with the same bytes, in pieces.

    Attributes:
        pieces: Sent one by one, ``pause`` seconds apart; then the connection is closed.
        requests: What was received.
        before: Called before each piece, with its number; returns when it may be sent.
        over: Ends pauses.
    """

    def __init__(self, pieces: list[bytes], pause: float = 0.02) -> None:
        self.pieces, self.pause = pieces, pause
        self.requests: list[bytes] = []
        self.before: Callable[[int], object] = lambda number: None
        self.over = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        request = connection.recv(1 << 16)
        if request.startswith(b"GET"):
            # /health and /v1/models alike.
            body = b'{"data":[{"id":"scripted"}]}'
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            connection.sendall(head.encode() + body)
            return
        length = int(re.search(rb"Content-Length: (\d+)", request)[1])  # type: ignore[index]
        while len(request.partition(b"\r\n\r\n")[2]) < length:
            request += connection.recv(1 << 16)
        self.requests.append(request)
        for number, piece in enumerate(self.pieces):
            self.before(number)
            try:
                connection.sendall(piece)
            except OSError:
                return
            self.over.wait(self.pause)


@pytest.fixture
def script() -> Iterator[Callable[..., Script]]:
    """Start scripted servers; they end with the test."""
    started: list[Script] = []

    def start(pieces: list[bytes], pause: float = 0.02) -> Script:
        started.append(Script(pieces, pause))
        return started[-1]

    yield start
    for server in started:
        server.listener.close()
        server.over.set()
