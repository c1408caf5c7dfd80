"""Who connects to a port of ranks says one short message, or goes; nobody is waited for."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from quire.distributed.connections import Door, framed


@pytest.fixture
def door() -> Iterator[Door]:
    with Door(socket.create_server(("127.0.0.1", 0))) as found:
        yield found


def greeted(door: Door) -> tuple[socket.socket, bytes]:
    """Wait until somebody has said something."""
    for _ in range(200):
        if found := door.greet(0.1):
            return found[0]
    raise AssertionError("nobody came")


def is_sent_away(door: Door, one: socket.socket) -> bool:
    """Wait until the door closes a connection."""
    one.settimeout(0.1)
    for _ in range(200):
        assert not door.greet(0.0)
        try:
            return one.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            continue
    return False


def test_a_message_may_come_in_pieces_and_others_before_it(door: Door) -> None:
    with (
        socket.create_connection(door.address) as slow,
        socket.create_connection(door.address) as quick,
    ):
        message = framed(b"a rank")
        for byte in message[:-1]:
            slow.sendall(bytes([byte]))
            assert door.greet(0.01) == []
        quick.sendall(framed(b""))
        connection, said = greeted(door)
        assert said == b"" and connection.getpeername() == quick.getsockname()
        connection.close()
        slow.sendall(message[-1:])
        connection, said = greeted(door)
        assert said == b"a rank" and connection.getpeername() == slow.getsockname()
        connection.close()


@pytest.mark.parametrize(
    "noise",
    [b"GET / HTTP/1.1\r\n", b"\xff" * 4, framed(bytes(5000)), framed(b"one") + b"more"],
    ids=["http", "length", "long", "two"],
)
def test_who_says_too_much_is_sent_away(door: Door, noise: bytes) -> None:
    with socket.create_connection(door.address) as stranger:
        stranger.sendall(noise)
        assert is_sent_away(door, stranger)


def test_who_is_late_is_sent_away() -> None:
    with (
        Door(socket.create_server(("127.0.0.1", 0)), seconds=0.05) as door,
        socket.create_connection(door.address) as silent,
    ):
        assert is_sent_away(door, silent)


def test_the_oldest_go_where_too_many_wait(door: Door) -> None:
    """The first ones go; without a limit they would take all descriptors."""
    strangers = []
    for _ in range(70):
        strangers.append(socket.create_connection(door.address))
        door.greet(0.1)
    assert all(is_sent_away(door, stranger) for stranger in strangers[:6])
    door.close()
    for stranger in strangers:
        stranger.close()
