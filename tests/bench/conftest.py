"""A server on quire-tiny, and one whose answers are scripted byte by byte."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "quire.cli.main"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "100"}


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of ``quire serve`` with quire-tiny."""
    flags = ["serve", "--port", "0", "--memory", "256MiB", "--threads", "1"]
    process = subprocess.Popen(
        [*COMMAND, *flags, "--disable-uvicorn-access-log"],
        cwd=ROOT,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    address, lines = None, []
    for line in process.stderr:
        lines.append(line)
        found = re.match(r"ready: (\S+) serves", line)
        if found:
            address = found[1]
            break
    assert address, "".join(lines)
    drain = threading.Thread(target=process.stderr.read)
    drain.start()
    yield address
    process.terminate()
    assert process.wait(60) == 0
    drain.join()
    process.stderr.close()


@pytest.fixture(scope="session")
def bench() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``quire bench serve`` with arguments."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, "bench", "serve", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env=ENVIRONMENT,
            cwd=ROOT,
        )

    return run


class Script:
    """A TCP server that answers each connection's request with the same bytes, in pieces.

    Attributes:
        pieces: Sent one by one, ``pause`` seconds apart; then the connection is closed.
        requests: What was received.
    """

    def __init__(self, pieces: list[bytes], pause: float = 0.02) -> None:
        self.pieces, self.pause = pieces, pause
        self.requests: list[bytes] = []
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
        for piece in self.pieces:
            try:
                connection.sendall(piece)
            except OSError:
                return
            time.sleep(self.pause)


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
