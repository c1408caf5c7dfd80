"""Web servers on loopback: one that a server may ask and that answers badly, and traps.

A trap listens where nothing may connect to, and counts who does.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from typing import Self

from benchmarks.robustness.picture_cases import Places, private_urls
from tools.hostile_pictures import picture

_CHUNK = bytes(2**16)


class Listener:
    """Accepts connections on loopback, each in a thread of its own.

    Attributes:
        name: Its address.
        port: TCP port.
        connections: So far.
    """

    def __init__(self, address: str = "127.0.0.1", port: int = 0) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, port), family=family)
        self.port: int = self._listener.getsockname()[1]
        self.name = f"{address} {self.port}"
        self.connections = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # closing alone does not wake its thread
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with closing(connection), suppress(OSError, IndexError):
            connection.settimeout(30)
            path = connection.recv(65536).decode("latin-1").split(" ")[1]
            for part in self.answer(path):
                connection.sendall(part)

    def answer(self, path: str) -> Iterable[bytes]:
        """Return what is sent for a path."""
        return [_page(picture())]


class Trap(Listener):
    """Gives a picture to every client, so that a wrong connection would look like a success."""

    @classmethod
    def open_all(cls) -> list[Trap]:
        """Return one on a free port, and those on the ports of the web that may be listened on."""
        found = [cls()]
        for address in ("127.0.0.1", "::1"):
            for port in (80, 443):
                with suppress(OSError):
                    found.append(cls(address, port))
        return found


class AllowedWeb(Listener):
    """May be asked; its answers are no pictures, or lead elsewhere.

    Attributes:
        host: With its port.
    """

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.host = f"127.0.0.1:{self.port}"
        self._private = private_urls(places)

    def answer(self, path: str) -> Iterable[bytes]:
        """Return the bad answer that a path names; see ``picture_cases.WEB_ANSWERS``."""
        kind, _, number = path[1:].partition("/")
        if kind in ("redirect", "circle") and not number.isdecimal():
            return [_head("404 Not Found")]  # a Location that is a path after all
        if kind == "redirect":
            return [_head("302 Found", f"Location: {self._private[int(number)]}")]
        if kind == "circle":
            return [_head("302 Found", f"Location: /circle/{int(number) + 1}")]
        answers: dict[str, Iterable[bytes]] = {
            "html": [_page(b"<!doctype html><img src=x>", "Content-Type: image/png")],
            "empty": [_page(b"")],
            "status": [_head("503 Service Unavailable")],
            "nowhere": [_head("302 Found")],
            "short": [_page(picture())[:-100]],
            "cut": [_page(picture()[:-200])],
            "gzip": [_page(b"\x1f\x8b" + bytes(100), "Content-Encoding: gzip")],
            "told": [b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", _CHUNK],
            "endless": _endless(),
            "headers": _headers(),
            "chunks": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n"],
            "noise": [bytes(range(256))],
            "closed": [],
            "trickle": _trickle(),
            "silent": _silent(),
        }
        return answers.get(kind, [_head("404 Not Found")])


def _head(status: str, *headers: str, length: int = 0) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {length}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1", "replace")


def _page(body: bytes, *headers: str) -> bytes:
    return _head("200 OK", *headers, length=len(body)) + body


def _endless() -> Iterator[bytes]:
    yield b"HTTP/1.0 200 OK\r\n\r\n"
    while True:
        yield _CHUNK


def _headers() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    while True:
        yield b"X-More: " + b"a" * 5000 + b"\r\n"


def _trickle() -> Iterator[bytes]:
    yield b"HTTP/1.0 200 OK\r\n\r\n"
    while True:
        time.sleep(0.3)
        yield b"a"


def _silent() -> Iterator[bytes]:
    time.sleep(15)
    yield b""
