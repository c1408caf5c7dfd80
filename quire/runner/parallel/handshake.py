"""What the driver and a rank that starts tell each other over a socket, before any command."""

from __future__ import annotations

import socket
from typing import TypeVar

import msgspec

from quire.core.config import EngineConfig

Message = TypeVar("Message")
_LENGTH_BYTES = 4


class StartRank(msgspec.Struct, frozen=True):
    """What a rank is to be.

    Attributes:
        rank: Its number.
        folder: The checkpoint, a folder or a GGUF file.
        config: The engine's settings; memory and threads are this rank's.
    """

    rank: int
    folder: str
    config: EngineConfig


class RankLoaded(msgspec.Struct, frozen=True, tag=True):
    """A rank has its part of the weights.

    Attributes:
        weight_bytes, scratch_bytes: Of memory.
        block_bytes: Of a block of its part of the KV cache.
        num_blocks: That fit in its memory.
        max_model_len: Tokens of a request that fit.
    """

    weight_bytes: int
    scratch_bytes: int
    block_bytes: int
    num_blocks: int
    max_model_len: int


class RankFailed(msgspec.Struct, frozen=True, tag=True):
    """A rank ends, because something went wrong.

    Attributes:
        kind: Name of the error's class.
        text: Its message.
    """

    kind: str
    text: str


def send(connection: socket.socket, message: object) -> None:
    """Send a message whole.

    Raises:
        OSError: The other side is gone.
    """
    data = msgspec.msgpack.encode(message)
    connection.sendall(len(data).to_bytes(_LENGTH_BYTES, "little") + data)


def receive(connection: socket.socket, kind: type[Message]) -> Message:
    """Wait for a message.

    Raises:
        EOFError: The other side is gone.
    """
    size = int.from_bytes(_exactly(connection, _LENGTH_BYTES), "little")
    return msgspec.msgpack.decode(_exactly(connection, size), type=kind)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise EOFError("the other side is gone")
        data += part
    return data
