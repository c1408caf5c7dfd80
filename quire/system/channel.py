"""Messages between processes in frames with a limit, and descriptors within a machine."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from quire.system.connections import LENGTH_BYTES, decoded, exactly, framed

#: Bytes of a message, at most: enough for the hashes of a prompt of millions of tokens.
MAX_MESSAGE_BYTES = 2**26
#: Pause after a connection that could not be accepted.
_PAUSE_SECONDS = 0.1
Message = TypeVar("Message")


def send(connection: socket.socket, message: msgspec.Struct, *descriptors: int) -> None:
    """Send a message.

    Raises:
        OSError: The other side is gone, or does not read in time.
    """
    data = framed(msgspec.msgpack.encode(message))
    if descriptors:
        data = data[socket.send_fds(connection, [data], list(descriptors)) :]
    connection.sendall(data)


def receive(
    connection: socket.socket,
    decode: Callable[[bytes], Message],
    max_bytes: int = MAX_MESSAGE_BYTES,
) -> tuple[Message, list[int]]:
    """Return the next message, and the descriptors that came with it.

    Args:
        connection: The connection to the other side.
        decode: Decoder of the kinds of messages that the other side sends.
        max_bytes: Bytes of a message, at most; a longer one is refused before it is read.

    Raises:
        EOFError: The other side is gone.
        OSError: The other side does not send in time, or sends no such message.
    """
    head, descriptors, *_ = socket.recv_fds(connection, LENGTH_BYTES, 1)
    try:
        if not head:
            raise EOFError("the other side is gone")
        head += exactly(connection, LENGTH_BYTES - len(head))
        length = int.from_bytes(head, "little")
        if length > max_bytes:
            raise ConnectionError(f"a message must have <= {max_bytes} bytes; got {length}")
        return decoded(decode, exactly(connection, length)), descriptors
    except (OSError, EOFError):
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def accept_own_user(listener: socket.socket) -> socket.socket | None:
    """Wait for a connection to a Unix socket and accept it; None where it is another user's.

    None as well where it is gone already, or cannot be accepted now, say for lack of descriptors.
    """
    try:
        connection, _ = listener.accept()
    except OSError:
        time.sleep(_PAUSE_SECONDS)
        return None
    if peer_is_own_user(connection):
        return connection
    connection.close()
    return None


def peer_is_own_user(connection: socket.socket) -> bool:
    """Return whether the process at the other end of a Unix socket is this user's."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, user, _ = struct.unpack("3i", credentials)
    return bool(user == os.getuid())
