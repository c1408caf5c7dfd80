"""Who connects to a port of ranks says one short message and has the key, or goes."""

from __future__ import annotations

import fcntl
import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.runner.blocks.transfer import transfer_messages as messages
from quire.runner.ranks import commands
from quire.runner.ranks import rendezvous as meeting
from quire.system import connections
from quire.system.connections import (
    HandshakeListener,
    decoded,
    exactly,
    framed,
    introduce,
    readable,
)


@pytest.fixture
def door() -> Iterator[HandshakeListener]:
    with HandshakeListener(socket.create_server(("127.0.0.1", 0)), "key") as found:
        yield found


def greeted(door: HandshakeListener) -> tuple[socket.socket, bytes | None]:
    """Wait until a peer has sent its message."""
    for _ in range(200):
        if found := door.greet(0.1):
            return found[0]
    raise AssertionError("no peer came")


def is_sent_away(door: HandshakeListener, one: socket.socket) -> bool:
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


def test_a_message_may_come_in_pieces_and_others_before_it(door: HandshakeListener) -> None:
    with (
        socket.create_connection(door.address) as slow,
        socket.create_connection(door.address) as quick,
    ):
        for byte in framed(b"a rank"):
            assert door.greet(0.01) == []
            slow.sendall(bytes([byte]))
        introduced = threading.Thread(target=introduce, args=(quick, "key", b""))
        introduced.start()
        connection, said = greeted(door)
        assert said == b"" and connection.getpeername() == quick.getsockname()
        introduced.join()
        connection.close()
        proof = connections._proof("key", exactly(slow, connections._CHALLENGE_BYTES), b"a rank")
        for byte in proof:
            assert door.greet(0.01) == []
            slow.sendall(bytes([byte]))
        connection, said = greeted(door)
        assert said == b"a rank" and connection.getpeername() == slow.getsockname()
        connection.close()


@pytest.mark.parametrize(
    "noise",
    [b"GET / HTTP/1.1\r\n", b"\xff" * 4, framed(bytes(5000)), framed(b"one") + bytes(33)],
    ids=["http", "length", "long", "two"],
)
def test_who_says_too_much_is_sent_away(door: HandshakeListener, noise: bytes) -> None:
    with socket.create_connection(door.address) as stranger:
        stranger.sendall(noise)
        assert is_sent_away(door, stranger)


def test_who_is_late_is_sent_away() -> None:
    with (
        HandshakeListener(socket.create_server(("127.0.0.1", 0)), "key", seconds=0.05) as door,
        socket.create_connection(door.address) as silent,
    ):
        assert is_sent_away(door, silent)


def test_the_oldest_go_where_too_many_wait(door: HandshakeListener) -> None:
    """The first ones go; without a limit they would take all descriptors."""
    strangers = []
    for _ in range(70):
        strangers.append(socket.create_connection(door.address))
        door.greet(0.1)
    assert all(is_sent_away(door, stranger) for stranger in strangers[:6])
    door.close()
    for stranger in strangers:
        stranger.close()


def test_a_greeting_that_was_overheard_opens_no_door(door: HandshakeListener) -> None:
    """The key went over the wire with each greeting, and its bytes could be sent once more."""
    with socket.create_connection(door.address) as own:
        introduced = threading.Thread(target=introduce, args=(own, "key", b"rank 1"))
        introduced.start()
        connection, said = greeted(door)
        introduced.join()
        assert said == b"rank 1"
        connection.close()
    with socket.create_connection(door.address) as other:
        heard = framed(b"rank 1") + connections._proof("key", bytes(24), b"rank 1")
        other.sendall(heard)
        connection, said = greeted(door)
        assert said is None
        connection.close()


#: Each decoder of what a peer sends, and messages that it knows.
DECODERS = {
    "blocks": (messages._decode, messages.Blocks([bytes(32)], [7])),
    "rank": (msgspec.msgpack.Decoder(meeting.JoinRequest).decode, meeting.hello(1, "")),
    "command": (commands._decode, commands.CopyBlocks([(1, 2)])),
}
#: Pieces that decoders of msgspec stumble over, each in its own way.
PIECES = st.sampled_from(
    [b"\xa3\xed\xa0\x80", b"\x91" * 3000, b"\xdd\xff\xff\xff\xff", b"\xc7\x0c\xff" + b"\xff" * 12]
)


@pytest.mark.parametrize("kind", DECODERS)
@given(data=st.data())
def test_whatever_a_peer_sends_is_a_message_or_one_refusal(kind: str, data: st.DataObject) -> None:
    """Text that was no UTF-8 raised another error than msgspec's own, and ended who greets."""
    decode, known = DECODERS[kind]
    frame = bytearray(msgspec.msgpack.encode(known))
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.integers(0, len(frame)))
        end = data.draw(st.integers(begin, min(begin + 8, len(frame))))
        frame[begin:end] = data.draw(st.binary(max_size=8) | PIECES)
    try:
        decoded(decode, bytes(frame))
    except ConnectionError as error:
        assert "a message of no known kind was sent" in str(error)


def test_any_number_of_descriptors_is_waited_for() -> None:
    """``select`` takes descriptors below 1,024 alone; a server with more connections failed."""
    one, other = socket.socketpair()
    high = socket.socket(fileno=fcntl.fcntl(one.fileno(), fcntl.F_DUPFD, 1500))
    with one, other, high:
        other.send(b"x")
        assert readable([high], 60.0) == [high]
