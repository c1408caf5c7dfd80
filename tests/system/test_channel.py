"""Messages of a channel: descriptors, and what another process must not send."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import msgspec
import pytest

from quire.system.channel import receive, send
from quire.system.connections import LENGTH_BYTES, framed


class Note(msgspec.Struct):
    text: str


decode = msgspec.msgpack.Decoder(Note).decode
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_a_message_arrives_with_its_descriptor(pair: Pair) -> None:
    read, write = os.pipe()
    send(pair[0], Note("a pipe"), write)
    send(pair[0], Note("nothing"))
    os.close(write)
    message, (descriptor,) = receive(pair[1], decode)
    os.write(descriptor, b"x")
    assert message == Note("a pipe") and os.read(read, 1) == b"x"
    assert receive(pair[1], decode) == (Note("nothing"), [])
    os.close(descriptor)
    os.close(read)


def test_a_message_over_the_limit_is_refused_before_it_is_read(pair: Pair) -> None:
    pair[0].sendall((65).to_bytes(LENGTH_BYTES, "little"))
    with pytest.raises(ConnectionError, match="must have <= 64 bytes; got 65"):
        receive(pair[1], decode, 64)


@pytest.mark.parametrize("data", [b"", b"\1", b"\4\0\0\0ab"])
def test_a_cut_message_is_the_end_of_the_other_side(pair: Pair, data: bytes) -> None:
    pair[0].sendall(data)
    pair[0].close()
    with pytest.raises(EOFError):
        receive(pair[1], decode)


def test_a_descriptor_of_a_refused_message_is_closed(pair: Pair) -> None:
    read, write = os.pipe()
    socket.send_fds(pair[0], [framed(b"\xc1")], [write])
    os.close(write)
    with pytest.raises(ConnectionError, match="no known kind"):
        receive(pair[1], decode)
    assert os.read(read, 1) == b""  # the last writing end is closed
    os.close(read)
