"""Messages over a stream socket, in both directions, without waiting."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from quire.llm.process.engine_messages import FromEngine, ToEngine
from quire.system.connections import decoded

_encode = msgspec.msgpack.Encoder().encode
_LENGTH_BYTES = 4
_READ_BYTES = 1 << 18


class MessageSocket:
    """Messages over a stream socket, each after its length.

    Neither side ever waits to write: bytes that the other has not taken wait here for
    :meth:`flush`.
    Any thread may send; one thread receives.

    Args:
        connection: A socket that is one end of a pair.
        decoder: The decoder of messages that arrive.
    """

    def __init__(self, connection: socket.socket, decoder: msgspec.msgpack.Decoder[Any]) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._decode = decoder.decode
        self._received = bytearray()
        self._unsent = bytearray()
        self._lock = threading.Lock()  # of what is unsent

    @property
    def has_unsent(self) -> bool:
        """Whether :meth:`flush` has something to do."""
        return bool(self._unsent)

    def send(self, message: ToEngine | FromEngine) -> None:
        """Send, or keep what does not fit now.

        Raises:
            OSError: The other side is gone.
        """
        data = _encode(message)
        with self._lock:
            self._unsent += len(data).to_bytes(_LENGTH_BYTES, "little") + data
        self.flush()

    def flush(self) -> None:
        """Send the bytes that were kept, as far as they fit now.

        Raises:
            OSError: The other side is gone.
        """
        with self._lock, suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self.connection.send(self._unsent)]

    def receive(self) -> Iterator[Any]:
        """Yield the messages that have arrived, without waiting.

        Raises:
            EOFError: The other side is gone and all its messages were yielded.
            ConnectionError: The bytes are not a message of an engine or a server.
        """
        ended = False
        while True:
            try:
                data = self.connection.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError:  # also of a machine that is out of reach
                data = b""
            if not data:
                ended = True
                break
            self._received += data
            if len(data) < _READ_BYTES:
                break
        yield from self._split()
        if ended:
            raise EOFError

    def wait(self, timeout: float | None, *wakes: socket.socket | None) -> None:
        """Wait until something arrives (here or at a wake) or what was kept can be sent."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        for wake in wakes:
            if wake is not None:
                poll.register(wake, select.POLLIN)
        poll.poll(None if timeout is None else timeout * 1000)

    def _split(self) -> Iterator[Any]:
        received = self._received
        while len(received) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(received[:_LENGTH_BYTES], "little")
            if len(received) < end:
                return
            message = decoded(self._decode, received[_LENGTH_BYTES:end])
            del received[:end]
            yield message
