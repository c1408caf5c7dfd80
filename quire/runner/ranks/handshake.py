"""Messages between the driver and a starting rank over a socket, before any command."""

from __future__ import annotations

import socket
from functools import partial
from typing import TypeVar

import msgspec

from quire.core import errors
from quire.core.built_types import built
from quire.core.errors import ModelLoadError, QuireError
from quire.settings.config import EngineConfig
from quire.system import channel
from quire.system.connections import decoded

Message = TypeVar("Message")
#: Bytes of a message, at most, far more than any has: another peer's length must allocate no more.
_MAX_BYTES = 1 << 20


class StartRank(msgspec.Struct, frozen=True):
    """The driver's settings for a rank.

    Attributes:
        rank: The rank's number.
        folder: The checkpoint, a folder or a GGUF file.
        config: The engine's settings; memory and threads are this rank's.
    """

    rank: int
    folder: str
    config: EngineConfig


class RankLoaded(msgspec.Struct, frozen=True, tag=True):
    """Report of a rank that has loaded its part of the weights.

    Attributes:
        weight_bytes, scratch_bytes: Memory of the weights and of activations.
        block_bytes: Bytes of a block in the rank's part of the KV cache.
        num_blocks: Blocks that fit in the rank's memory.
        max_model_len: Tokens of the longest request that fits.
    """

    weight_bytes: int
    scratch_bytes: int
    block_bytes: int
    num_blocks: int
    max_model_len: int


class StartFailed(msgspec.Struct, frozen=True, tag=True):
    """Report of a rank that ends because of an error.

    Attributes:
        kind: Name of the error's class.
        text: The error's message.
    """

    kind: str
    text: str

    @classmethod
    def of(cls, error: QuireError) -> StartFailed:
        """Return the report of an error."""
        return cls(type(error).__name__, str(error))

    def error(self) -> QuireError:
        """Return the error that is reported."""
        kind = getattr(errors, self.kind, None)
        if isinstance(kind, type) and issubclass(kind, QuireError):
            return kind(self.text)
        return ModelLoadError(self.text)


def receive(connection: socket.socket, kind: type[Message]) -> Message:
    """Wait for a message without descriptors; see :func:`receive_with_descriptors`."""
    return receive_with_descriptors(connection, kind)[0]


def receive_with_descriptors(
    connection: socket.socket, kind: type[Message]
) -> tuple[Message, list[int]]:
    """Wait for a message and its descriptors; see :func:`quire.system.channel.receive`."""
    decode_kind = partial(msgspec.msgpack.decode, type=built(kind))
    return channel.receive(connection, decode_kind, _MAX_BYTES)


def decode(data: bytes, kind: type[Message]) -> Message:
    """Return the message that a side has sent.

    Raises:
        OSError: The bytes are no such message.
    """
    found: Message = decoded(partial(msgspec.msgpack.decode, type=built(kind)), data)
    return found
