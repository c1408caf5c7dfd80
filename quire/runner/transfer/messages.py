"""What both ends of a connection say; blocks themselves go through memory that both have mapped.

The sender offers the hashes of a prompt's blocks before it computes them. The receiver answers with
a row of its memory for each that it lacks. The sender writes a block there and then sets the row's
flag: no message says that it has come, and none is late.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import TypeAlias

import msgspec

#: In place of a row: the receiver has the block, or no room for it.
NO_ROW = -1
_LENGTH_BYTES = 4
#: Of a message: the hashes of a prompt of millions of tokens.
_MOST_BYTES = 2**26


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
_decoder = msgspec.msgpack.Decoder(Message)
_encode = msgspec.msgpack.Encoder().encode


def send(connection: socket.socket, message: Message, *descriptors: int) -> None:
    """Send a message.

    Raises:
        OSError: The other side is gone, or does not read in time.
    """
    data = _encode(message)
    framed = len(data).to_bytes(_LENGTH_BYTES, "little") + data
    if descriptors:
        sent = socket.send_fds(connection, [framed], list(descriptors))
        framed = framed[sent:]
    connection.sendall(framed)


def receive(connection: socket.socket) -> tuple[Message, list[int]]:
    """Return the next message, and the descriptors that came with it.

    Raises:
        EOFError: The other side is gone.
        OSError: It does not send in time, or a message that is too long.
        msgspec.DecodeError: It is no message.
    """
    head, descriptors, *_ = socket.recv_fds(connection, _LENGTH_BYTES, 1)
    head += _read(connection, _LENGTH_BYTES - len(head)) if head else b""
    if not head:
        raise EOFError
    length = int.from_bytes(head, "little")
    if length > _MOST_BYTES:
        raise OSError(f"a message must have at most {_MOST_BYTES} bytes; got {length}")
    return _decoder.decode(_read(connection, length)), descriptors


def _read(connection: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        part = connection.recv(count - len(found))
        if not part:
            raise EOFError
        found += part
    return bytes(found)


def peer_is_own_user(connection: socket.socket) -> bool:
    """Return whether the process at the other end of a Unix socket is this user's."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, user, _ = struct.unpack("3i", credentials)
    return bool(user == os.getuid())
