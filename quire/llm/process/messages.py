"""What engine and server processes say to each other, and the socket they say it on.

Token ids and log-probabilities only; text stays with the server's process.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from quire.core.config import EngineConfig
from quire.core.log import LogFormat
from quire.core.metrics import Samples
from quire.core.model_config import ModelConfig
from quire.core.request import EngineRequest
from quire.engine.engine_output import EngineOutput


class Start(msgspec.Struct, tag=True):
    """First message to the engine: what to load."""

    folder: str
    config: EngineConfig
    eos_token_ids: tuple[int, ...]
    tokenizer_folder: str
    log_format: LogFormat = "human"


class Add(msgspec.Struct, tag=True):
    """Queue a request; it is answered by outputs or a :class:`Refused`."""

    request: EngineRequest


class Abort(msgspec.Struct, tag=True):
    """End a request; its last outputs and then :class:`Done` follow."""

    request_id: str
    ticket: int


class StopSequence(msgspec.Struct, tag=True):
    """A stop string ended this sequence."""

    request_id: str
    index: int


class Describe(msgspec.Struct, tag=True):
    """Ask for the block tables as text; :class:`Done` follows."""

    ticket: int


class Loaded(msgspec.Struct, tag=True):
    """The engine takes requests."""

    model_config: ModelConfig
    max_model_len: int
    stats: Samples


class Failed(msgspec.Struct, tag=True):
    """The engine could not load, or a step failed; it ends.

    Attributes:
        kind: Name of a class in :mod:`quire.core.errors`.
    """

    kind: str
    message: str


class Refused(msgspec.Struct, tag=True):
    """A request was not taken; ``kind`` as of :class:`Failed`."""

    request_id: str
    kind: str
    message: str
    param: str | None


class Step(msgspec.Struct, tag=True):
    """A step is done: proof of progress, with the news it brought.

    Attributes:
        stats: The engine's counters, when they are due.
    """

    outputs: list[EngineOutput]
    stats: Samples | None = None


class Done(msgspec.Struct, tag=True):
    """A question is answered."""

    ticket: int
    text: str = ""


ToEngine: TypeAlias = Start | Add | Abort | StopSequence | Describe
FromEngine: TypeAlias = Loaded | Failed | Refused | Step | Done

_encode = msgspec.msgpack.Encoder().encode
to_engine = msgspec.msgpack.Decoder(ToEngine)
from_engine = msgspec.msgpack.Decoder(FromEngine)

_LENGTH_BYTES = 4
_READ_BYTES = 1 << 18


class MessageSocket:
    """Messages over a stream socket, each behind its length.

    Neither side ever waits to write: what the other has not taken stays here until :meth:`flush`.

    Args:
        connection: One end of a socket pair.
        decoder: Of what comes in.
    """

    def __init__(self, connection: socket.socket, decoder: msgspec.msgpack.Decoder[Any]) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._decode = decoder.decode
        self._received = bytearray()
        self._unsent = bytearray()

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
        self._unsent += len(data).to_bytes(_LENGTH_BYTES, "little") + data
        self.flush()

    def flush(self) -> None:
        """Send what was kept, as far as it fits now.

        Raises:
            OSError: The other side is gone.
        """
        while self._unsent:
            try:
                sent = self.connection.send(self._unsent)
            except BlockingIOError:
                return
            del self._unsent[:sent]

    def receive(self) -> Iterator[Any]:
        """Yield the messages that have arrived, without waiting.

        Raises:
            EOFError: The other side is gone and all it said was yielded.
        """
        ended = False
        while True:
            try:
                data = self.connection.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except ConnectionError:
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

    def wait(self, timeout: float | None, wake: socket.socket | None = None) -> None:
        """Wait until something arrives (here or at ``wake``) or what was kept can be sent."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        if wake is not None:
            poll.register(wake, select.POLLIN)
        poll.poll(None if timeout is None else timeout * 1000)

    def close(self) -> None:
        """Hang up."""
        self.connection.close()

    def _split(self) -> Iterator[Any]:
        received = self._received
        while len(received) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(received[:_LENGTH_BYTES], "little")
            if len(received) < end:
                return
            message = self._decode(received[_LENGTH_BYTES:end])
            del received[:end]
            yield message
