"""What both ends of a connection say.

The sender offers the hashes of a prompt's blocks before it computes them. The receiver answers with
a row of its memory for each that it lacks. Within a machine both have mapped that memory: the
sender writes a block there and then sets the row's flag; no message says that it has come, and none
is late. From one machine to another, :class:`Blocks` brings them.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from quire.distributed import local_messages
from quire.distributed.connections import framed

#: In place of a row: the receiver has the block, or no room for it.
NO_ROW = -1
#: Of a system call: as many as the kernel takes, or fewer.
_MOST_PARTS = 512


class Knock(NamedTuple):
    """How a sender on another machine introduces itself.

    Attributes:
        key: What only engines of this server know.
        fingerprint: What its blocks depend on besides their tokens.
    """

    key: str
    fingerprint: bytes


class Hello(msgspec.Struct, tag=True):
    """First message of a receiver, within a machine with the descriptor of its memory.

    Attributes:
        num_rows: Blocks that the memory has room for, after a flag for each.
        block_bytes: Of each.
        refusal: Why it takes nothing; empty where it does.
    """

    num_rows: int
    block_bytes: int
    refusal: str = ""


class Offer(msgspec.Struct, tag=True):
    """Blocks will be computed; :class:`Rows` follows."""

    block_hashes: list[bytes]


class Rows(msgspec.Struct, tag=True):
    """Where to write each of the offered blocks, or :data:`NO_ROW`."""

    rows: list[int]


class Release(msgspec.Struct, tag=True):
    """What was offered and has not come will not; nothing more is written there."""

    block_hashes: list[bytes]


class Blocks(msgspec.Struct, tag=True):
    """The bytes of these blocks, which were offered, follow the message.

    Attributes:
        block_hashes: Of them.
        checksums: Of each hash with its block.
    """

    block_hashes: list[bytes]
    checksums: list[int]


Message: TypeAlias = Hello | Offer | Rows | Release | Blocks
_encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], Message] = msgspec.msgpack.Decoder(Message).decode


def encoded(message: Message) -> bytes:
    """Return a message as it is sent."""
    return framed(_encode(message))


def receive(connection: socket.socket) -> tuple[Message, list[int]]:
    """Return the next message; see :func:`quire.distributed.local_messages.receive`."""
    return local_messages.receive(connection, _decode)


def rows_of(answer: Message, count: int) -> list[int]:
    """Return the rows that an offer of ``count`` blocks was answered with.

    Raises:
        OSError: It was not.
    """
    if not isinstance(answer, Rows) or len(answer.rows) != count:
        raise OSError(f"rows must follow an offer; got {type(answer).__name__}")
    return answer.rows


def send_parts(connection: socket.socket, parts: Sequence[memoryview]) -> None:
    """Send bytes one after the other, without a copy.

    Raises:
        OSError: The other side is gone, or reads nothing in time.
    """
    left = list(parts)
    while left:
        left = _after(left, connection.sendmsg(left[:_MOST_PARTS]))


def receive_parts(connection: socket.socket, parts: Sequence[memoryview]) -> None:
    """Fill memory with what comes.

    Raises:
        EOFError, OSError: The other side is gone.
    """
    left = list(parts)
    while left:
        # Whole, so that the thread asks for the interpreter once and not for each packet.
        count = connection.recvmsg_into(left[:_MOST_PARTS], 0, socket.MSG_WAITALL)[0]
        if not count:
            raise EOFError
        left = _after(left, count)


def _after(parts: list[memoryview], count: int) -> list[memoryview]:
    """Return what is left after ``count`` bytes."""
    done = 0
    while done < len(parts) and count >= len(parts[done]):
        count -= len(parts[done])
        done += 1
    return [parts[done][count:], *parts[done + 1 :]] if done < len(parts) else []
