"""What both ends of a connection say; blocks themselves go through memory that both have mapped.

The sender offers the hashes of a prompt's blocks before it computes them. The receiver answers with
a row of its memory for each that it lacks. The sender writes a block there and then sets the row's
flag: no message says that it has come, and none is late.
"""

from __future__ import annotations

import socket
from typing import TypeAlias

import msgspec

from quire.distributed import local_messages

#: In place of a row: the receiver has the block, or no room for it.
NO_ROW = -1


class Hello(msgspec.Struct, tag=True):
    """First message of a receiver, with the descriptor of its memory.

    Attributes:
        num_rows: Blocks that the memory has room for, after a flag for each.
        block_bytes: Of each.
    """

    num_rows: int
    block_bytes: int


class Offer(msgspec.Struct, tag=True):
    """Blocks will be computed; :class:`Rows` follows."""

    block_hashes: list[bytes]


class Rows(msgspec.Struct, tag=True):
    """Where to write each of the offered blocks, or :data:`NO_ROW`."""

    rows: list[int]


class Release(msgspec.Struct, tag=True):
    """What was offered and has not come will not; nothing more is written there."""

    block_hashes: list[bytes]


Message: TypeAlias = Hello | Offer | Rows | Release


def receive(connection: socket.socket) -> tuple[Message, list[int]]:
    """Return the next message; see :func:`quire.distributed.local_messages.receive`."""
    return local_messages.receive(connection, Message)  # type: ignore[arg-type]
