"""Messages between processes of one user on one machine, and descriptors along with them."""

from __future__ import annotations

import os
import socket
import struct
from typing import TypeVar

import msgspec

_LENGTH_BYTES = 4
#: Of a message: the hashes of a prompt of millions of tokens.
_MOST_BYTES = 2**26
Message = TypeVar("Message")


def send(connection: socket.socket, message: msgspec.Struct, *descriptors: int) -> None:
    """Send a message.

    Raises:
        OSError: The other side is gone, or does not read in time.
    """
    data = msgspec.msgpack.encode(message)
    framed = len(data).to_bytes(_LENGTH_BYTES, "little") + data
    if descriptors:
        sent = socket.send_fds(connection, [framed], list(descriptors))
        framed = framed[sent:]
    connection.sendall(framed)


def receive(connection: socket.socket, kind: type[Message]) -> tuple[Message, list[int]]:
    """Return the next message, and the descriptors that came with it.

    Raises:
        EOFError: The other side is gone.
        OSError: It does not send in time, or a message that is too long.
        msgspec.DecodeError: It is no such message.
    """
    head, descriptors, *_ = socket.recv_fds(connection, _LENGTH_BYTES, 1)
    head += _read(connection, _LENGTH_BYTES - len(head)) if head else b""
    if not head:
        raise EOFError
    length = int.from_bytes(head, "little")
    if length > _MOST_BYTES:
        raise OSError(f"a message must have at most {_MOST_BYTES} bytes; got {length}")
    return msgspec.msgpack.decode(_read(connection, length), type=kind), descriptors


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
