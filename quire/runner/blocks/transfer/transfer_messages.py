"""Messages between the two ends of a connection.

The sender offers the hashes of a prompt's blocks before it computes them. The receiver answers with
a row of its memory for each block that it does not have. Within a machine both have mapped that
memory: the sender writes a block there and then sets the row's flag; no message announces its
arrival, and none is late. From one machine to another, :class:`Blocks` carries them.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from quire.system import channel
from quire.system.connections import framed

#: Answer in place of a row: the receiver has the block, or no room for it.
NO_ROW = -1
#: Parts of memory in one system call: as many as the kernel takes, or fewer.
_MOST_PARTS = 512


class Knock(NamedTuple):
    """Introduction of a sender on another machine.

    Attributes:
        key: Key that only engines of this server have.
        fingerprint: Hash of all that the sender's blocks depend on besides their tokens.
    """

    key: str
    fingerprint: bytes


class ReceiverHello(msgspec.Struct, tag=True):
    """First message of a receiver; within a machine the descriptor of its memory is attached.

    Attributes:
        num_rows: Blocks that the memory has room for, after a flag for each.
        block_bytes: Bytes of each block.
        refusal: Reason why the receiver takes no blocks, or empty.
    """

    num_rows: int
    block_bytes: int
    refusal: str = ""


class BlockOffer(msgspec.Struct, tag=True):
    """Offer of blocks that will be computed; :class:`Rows` follows."""

    block_hashes: list[bytes]


class Rows(msgspec.Struct, tag=True):
    """Rows to write the offered blocks to, or :data:`NO_ROW`, by block."""

    rows: list[int]


class Release(msgspec.Struct, tag=True):
    """Withdrawal of offered blocks that were not sent; their rows are not written any more."""

    block_hashes: list[bytes]


class Blocks(msgspec.Struct, tag=True):
    """Header of blocks that were offered, whose bytes follow the message.

    Attributes:
        block_hashes: Hashes of the blocks.
        checksums: Checksum of each hash with its block.
    """

    block_hashes: list[bytes]
    checksums: list[int]


Message: TypeAlias = ReceiverHello | BlockOffer | Rows | Release | Blocks
_encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], Message] = msgspec.msgpack.Decoder(Message).decode


def encoded(message: Message) -> bytes:
    """Return the bytes of a message with its length in front."""
    return framed(_encode(message))


def receive(connection: socket.socket) -> tuple[Message, list[int]]:
    """Return the next message; see :func:`quire.system.channel.receive`."""
    return channel.receive(connection, _decode)


def rows_of(answer: Message, count: int) -> list[int]:
    """Return the rows in the answer to an offer of ``count`` blocks.

    Raises:
        OSError: The answer is of another kind, or has another number of rows.
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
    """Receive bytes into parts of memory until all are full.

    Raises:
        EOFError, OSError: The other side is gone.
    """
    left = list(parts)
    while left:
        # In full, so that the thread takes the interpreter's lock once and not for each packet.
        count = connection.recvmsg_into(left[:_MOST_PARTS], 0, socket.MSG_WAITALL)[0]
        if not count:
            raise EOFError
        left = _after(left, count)


def _after(parts: list[memoryview], count: int) -> list[memoryview]:
    """Return the parts that are left after ``count`` bytes."""
    done = 0
    while done < len(parts) and count >= len(parts[done]):
        count -= len(parts[done])
        done += 1
    return [parts[done][count:], *parts[done + 1 :]] if done < len(parts) else []
