"""What the driver and a rank that starts tell each other over a socket, before any command."""

from __future__ import annotations

import socket
from functools import partial
from typing import TypeVar

import msgspec

from quire.core import errors
from quire.core.built_types import built
from quire.core.config import EngineConfig
from quire.core.errors import ModelLoadError, QuireError
from quire.distributed.connections import LENGTH_BYTES, decoded, exactly, framed

Message = TypeVar("Message")
#: Far more than any message has: a length that somebody else sends would have memory taken.
_MAX_BYTES = 1 << 20


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


class StartFailed(msgspec.Struct, frozen=True, tag=True):
    """What was started ends, because something went wrong.

    Attributes:
        kind: Name of the error's class.
        text: Its message.
    """

    kind: str
    text: str

    @classmethod
    def of(cls, error: QuireError) -> StartFailed:
        """Return what tells of an error."""
        return cls(type(error).__name__, str(error))

    def error(self) -> QuireError:
        """Return the error that it tells of."""
        kind = getattr(errors, self.kind, None)
        if isinstance(kind, type) and issubclass(kind, QuireError):
            return kind(self.text)
        return ModelLoadError(self.text)


def send(connection: socket.socket, message: object) -> None:
    """Send a message whole.

    Raises:
        OSError: The other side is gone.
    """
    connection.sendall(framed(msgspec.msgpack.encode(message)))


def receive(connection: socket.socket, kind: type[Message]) -> Message:
    """Wait for a message.

    Raises:
        EOFError: The other side is gone.
        OSError: Likewise, or what it says is no such message.
    """
    size = int.from_bytes(exactly(connection, LENGTH_BYTES), "little")
    if size > _MAX_BYTES:
        raise ConnectionError(f"a message must have <= {_MAX_BYTES} bytes; got {size}")
    return decode(exactly(connection, size), kind)


def decode(data: bytes, kind: type[Message]) -> Message:
    """Return the message that a side has sent.

    Raises:
        OSError: It is none.
    """
    found: Message = decoded(partial(msgspec.msgpack.decode, type=built(kind)), data)
    return found
