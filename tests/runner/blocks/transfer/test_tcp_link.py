"""KV blocks by TCP: they arrive whole or not at all, and a deaf peer holds up no other."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import pytest

from quire.core.errors import ConfigError
from quire.core.metrics import add_up
from quire.llm.replicas.roles import Roles
from quire.runner.blocks.transfer import tcp_link
from quire.runner.blocks.transfer.inbox import Inbox
from quire.runner.blocks.transfer.outbox import Outbox
from quire.runner.blocks.transfer.ports import open_inbox
from quire.runner.blocks.transfer.tcp_link import TcpLink
from quire.runner.blocks.transfer.transfer_messages import (
    NO_ROW,
    BlockOffer,
    Blocks,
    Knock,
    ReceiverHello,
    Release,
    Rows,
    receive,
)
from quire.settings.kv_transfer import InboxAddress, KVTransfer
from quire.system.channel import send
from quire.system.connections import HandshakeListener, framed, introduce
from tests.ports import free_ports

SIZE, KEY, KNOWN = 5000, "key", b"f" * 32


def name(number: int) -> bytes:
    return bytes([number]) * 32


def block(number: int) -> Any:
    return np.random.default_rng(number).integers(0, 256, SIZE, np.uint8)


def address_of(server: socket.socket) -> InboxAddress:
    return InboxAddress("", *server.getsockname()[:2])


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links wait for an answer as long as any machine takes."""
    monkeypatch.setattr(tcp_link, "ANSWER_SECONDS", 60.0)


@pytest.fixture
def address() -> InboxAddress:
    return InboxAddress("", "127.0.0.1", free_ports())


@pytest.fixture
def inbox(address: InboxAddress) -> Iterator[Inbox]:
    made = open_inbox(8, SIZE, KVTransfer("decode", (address,), KEY), KNOWN)
    yield made
    made.close()


@pytest.fixture
def outbox(address: InboxAddress) -> Iterator[Outbox]:
    made = Outbox(KVTransfer("prefill", (address,), KEY), SIZE, KNOWN)
    yield made
    made.close()


@pytest.fixture
def raw(inbox: Inbox, address: InboxAddress) -> Iterator[socket.socket]:
    """A sender of which each byte is chosen."""
    with socket.create_connection((address.host, address.port), timeout=60) as connection:
        introduce(connection, KEY, KNOWN)
        assert receive(connection)[0] == ReceiverHello(8, SIZE)
        yield connection


def until(holds: Callable[[], object]) -> None:
    while not holds():
        time.sleep(0.001)


def offer(connection: socket.socket, numbers: Sequence[int]) -> list[int]:
    send(connection, BlockOffer([name(number) for number in numbers]))
    answer, _ = receive(connection)
    assert isinstance(answer, Rows)
    return answer.rows


def is_ended(connection: socket.socket) -> bool:
    """Read what it is told until it ends, which is waited for."""
    with suppress(ConnectionError):
        while connection.recv(4096):
            pass
    return True


def test_blocks_come_as_they_were_sent(inbox: Inbox, outbox: Outbox) -> None:
    inbox.skip(name(1).__eq__)
    inbox.put(name(2), block(2))
    outbox.announce(0, [name(number) for number in range(5)])
    assert [outbox.wants(name(number)) for number in range(5)] == [True, False, False, True, True]
    assert inbox.is_coming(name(3)) and not inbox.is_coming(name(2))
    for number in (3, 0):
        outbox.save(name(number), block(number))
    until(lambda: name(3) in inbox and name(0) in inbox)
    for number in (0, 2, 3):
        np.testing.assert_array_equal(inbox.get(name(number)), block(number))
    outbox.withdraw([name(4)])
    until(lambda: inbox.num_blocks == 3)
    assert not inbox.is_coming(name(4))
    sent, came = outbox.samples(), inbox.samples()
    assert add_up(sent, "kv_offload_store_bytes", tier="transfer") == 2 * SIZE
    assert add_up(came, "kv_offload_load_bytes", tier="transfer") == 2 * SIZE
    assert add_up(came, "kv_offload_load_time", tier="transfer") > 0


def test_a_damaged_block_is_none(inbox: Inbox, raw: socket.socket) -> None:
    assert NO_ROW not in offer(raw, [1, 2])
    good, bad = block(1).tobytes(), bytearray(block(2).tobytes())
    sums = [crc32(good, crc32(name(1))), crc32(bad, crc32(name(2)))]
    bad[SIZE // 2] ^= 1
    send(raw, Blocks([name(1), name(2)], sums))
    raw.sendall(good + bad)
    until(lambda: name(1) in inbox)
    assert name(2) not in inbox and not inbox.is_coming(name(2)) and inbox.num_blocks == 1
    assert add_up(inbox.samples(), "kv_offload_damaged_blocks", tier="transfer") == 1
    # It may be sent again, and so may one under another's name not.
    assert NO_ROW not in offer(raw, [2, 3])
    swapped = crc32(block(2).tobytes(), crc32(name(2)))
    send(raw, Blocks([name(3)], [swapped]))
    raw.sendall(block(2).tobytes())
    until(lambda: add_up(inbox.samples(), "kv_offload_damaged_blocks", tier="transfer") == 2)
    assert name(3) not in inbox


@pytest.mark.parametrize(
    "blocks",
    [
        Blocks([name(7)], [0]),
        Blocks([name(1), name(1)], [0, 0]),
        Blocks([name(1)], []),
        Blocks([name(1)], [0]),  # and half of it
    ],
)
def test_a_sender_that_breaks_off_leaves_nothing(
    inbox: Inbox, raw: socket.socket, blocks: Blocks
) -> None:
    offer(raw, [1, 2])
    assert inbox.num_blocks == 2
    send(raw, blocks)
    with suppress(OSError):  # it has ended before
        raw.sendall(bytes(SIZE // 2))
        raw.shutdown(socket.SHUT_WR)
    assert is_ended(raw)
    until(lambda: inbox.num_blocks == 0)
    assert name(1) not in inbox


def test_of_two_senders_one_brings_a_block(
    inbox: Inbox, outbox: Outbox, raw: socket.socket
) -> None:
    assert NO_ROW not in offer(raw, [1])
    outbox.announce(0, [name(1), name(2)])
    assert not outbox.wants(name(1)) and outbox.wants(name(2))
    send(raw, Blocks([name(2)], [crc32(bytes(SIZE), crc32(name(2)))]))
    with suppress(ConnectionError):  # it ends before all of it was sent
        raw.sendall(bytes(SIZE))
    assert is_ended(raw), "it is the other one's to bring"
    outbox.save(name(2), block(2))
    until(lambda: name(2) in inbox)
    np.testing.assert_array_equal(inbox.get(name(2)), block(2))


@pytest.mark.parametrize(
    ("knock", "size", "rule"),
    [
        (Knock("other", KNOWN), SIZE, "of another server"),
        (Knock("", KNOWN), SIZE, "of another server"),
        (Knock(KEY, b"g" * 32), SIZE, "another checkpoint"),
        (Knock(KEY, KNOWN), SIZE + 1, "must take blocks of 5001 bytes"),
    ],
)
def test_a_sender_of_something_else_is_sent_away(
    inbox: Inbox, address: InboxAddress, knock: Knock, size: int, rule: str
) -> None:
    with pytest.raises(OSError, match=rule):
        TcpLink(address, size, knock, lambda num_bytes, seconds: None)


#: A frame of msgpack whose text is no UTF-8: of a message with a key, as it was sent before.
NO_UTF8 = framed(b"\x83\xa4type\xa5Knock\xa3key\xa3\xed\xa0\x80\xabfingerprint\xc4\x00")


def test_a_frame_that_is_no_utf8_ends_no_port(
    inbox: Inbox, outbox: Outbox, address: InboxAddress
) -> None:
    """It ended the thread that greets, before any key was asked for: no sender could come again."""
    for said in (NO_UTF8, NO_UTF8 + bytes(32)):
        with socket.create_connection((address.host, address.port), timeout=60) as stranger:
            stranger.sendall(said)
            assert stranger.recv(16)
    outbox.announce(0, [name(1)])
    assert outbox.wants(name(1))


def test_a_message_that_is_no_utf8_ends_that_sender_alone(
    inbox: Inbox, outbox: Outbox, raw: socket.socket
) -> None:
    assert NO_ROW not in offer(raw, [1])
    raw.sendall(NO_UTF8)
    assert is_ended(raw)
    until(lambda: inbox.num_blocks == 0)
    outbox.announce(0, [name(1)])
    assert outbox.wants(name(1))


def test_a_port_without_a_thread_for_a_sender_takes_the_next(
    inbox: Inbox, outbox: Outbox, address: InboxAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of a thread that could not be started ended the one that greets."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with socket.create_connection((address.host, address.port), timeout=60) as sender:
            introduce(sender, KEY, KNOWN)
            assert is_ended(sender)
    outbox.announce(0, [name(1)])
    assert outbox.wants(name(1))


def test_strangers_hold_up_no_sender(inbox: Inbox, outbox: Outbox, address: InboxAddress) -> None:
    with ExitStack() as stack:
        strangers = [
            stack.enter_context(socket.create_connection((address.host, address.port), timeout=60))
            for _ in range(100)
        ]
        for number, stranger in enumerate(strangers):
            said = (
                b"",
                b"\x20",
                b"GET / HTTP/1.1\r\n\r\n",
                b"\xff\xff\xff\x7f",
                framed(b"x") + bytes(32),
            )
            with suppress(ConnectionError):
                stranger.sendall(said[number % len(said)])
        outbox.announce(0, [name(1)])
        outbox.save(name(1), block(1))
        until(lambda: name(1) in inbox)
        assert all(is_ended(stranger) for stranger in strangers[4::5] + strangers[2::5])


@contextmanager
def deaf() -> Iterator[tuple[TcpLink, socket.socket]]:
    """Open a link to a receiver that reads as little as the test does."""

    def answer() -> socket.socket:
        while not (found := door.greet(60.0)):
            pass
        ((connection, _),) = found
        connection.settimeout(60)
        send(connection, ReceiverHello(99, 2**20))
        return connection

    server = socket.create_server(("127.0.0.1", 0))
    with HandshakeListener(server, KEY) as door, ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answer)
        link = TcpLink(address_of(server), 2**20, Knock(KEY, KNOWN), lambda *_: None)
        with answered.result() as connection:
            yield link, connection
            link.close()


def test_a_receiver_that_does_not_read_is_given_up() -> None:
    data = np.zeros(2**20, np.uint8)
    with deaf() as (link, _):
        for number in range(250):  # a write that waited for the receiver would raise in the end
            link.write(name(number), 0, data)
    with deaf() as (link, _):
        assert link._connection.gettimeout() == tcp_link.ANSWER_SECONDS
        link._connection.settimeout(1.0)
        end = time.monotonic() + 60
        with pytest.raises(OSError, match="an earlier message was not sent"):
            while time.monotonic() < end:
                link.write(name(1), 0, data)
                time.sleep(0.005)


def test_what_finds_no_room_is_taken_back() -> None:
    with deaf() as (link, connection):
        link._room = 4
        data = np.zeros(2**20, np.uint8)
        taken = [link.write(name(number), 0, data) for number in range(40)]
        lost = [number for number, is_taken in enumerate(taken) if not is_taken]
        assert lost, "it is faster than any network"
        came, released = list[bytes](), list[bytes]()
        while len(came) + len(released) < 40:
            message, _ = receive(connection)
            if isinstance(message, Release):
                released += message.block_hashes
            elif isinstance(message, Blocks):
                came += message.block_hashes
                left = len(message.block_hashes) * 2**20
                while left:
                    left -= len(connection.recv(left))
        assert released == [name(number) for number in lost]
        assert came == [name(number) for number in range(40) if taken[number]]


def test_an_absent_receiver_is_not_asked_each_time(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    outbox.announce(0, [name(1)])
    assert not outbox.wants(name(1)) and "engine 0 takes no blocks" in caplog.text
    outbox.announce(5, [name(1)])
    assert not outbox.wants(name(1)) and "engine 5 takes no blocks" in caplog.text


def test_a_receiver_that_comes_back_gets_blocks(address: InboxAddress, outbox: Outbox) -> None:
    outbox.announce(0, [name(1)])
    transfer = KVTransfer("decode", (address,), KEY)
    for _ in range(2):
        inbox = open_inbox(8, SIZE, transfer, KNOWN)
        try:

            def is_wanted() -> bool:
                outbox.announce(0, [name(1)])
                return outbox.wants(name(1))

            until(is_wanted)
            outbox.save(name(1), block(1))
            until(lambda inbox=inbox: name(1) in inbox)
        finally:
            inbox.close()


def test_a_taken_port_is_a_setting_at_fault(inbox: Inbox, address: InboxAddress) -> None:
    with pytest.raises(ConfigError, match=r"must be of this machine and free; got 127.0.0.1:"):
        open_inbox(8, SIZE, KVTransfer("decode", (address,), KEY), KNOWN)


def test_addresses_are_by_machine() -> None:
    one = Roles(1).transfers(["a", "a", "a"], 9)
    assert one[0] is not None and one[2] is not None
    assert one[2].addresses[0] == one[0].addresses[0] and not one[0].addresses[0].port
    two = Roles(1).transfers(["a", "b", "a"], 9)
    assert two[2] is not None and all(address.name for address in two[2].addresses)
    assert [str(address) for address in two[2].addresses] == ["a:9", "b:10"]
    tcp = Roles(1, transport="tcp").transfers(["a", "a"], 9)
    assert tcp[1] is not None and tcp[1].addresses == (InboxAddress("", "a", 9),)
    assert KEY not in repr(tcp[1]) and tcp[1].key not in repr(tcp[1])
    with pytest.raises(ConfigError, match="must come with one machine; got engines on a, b"):
        Roles(1, transport="shared").transfers(["a", "b"], 9)
    with pytest.raises(ConfigError, match="--master-port must be at most 65534"):
        Roles(1, transport="tcp").transfers(["a", "a"], 2**16)
    assert Roles().transfers(["a", "b"], 9) == [None, None]


def test_a_transfer_s_key_is_sent_to_engines() -> None:
    made = KVTransfer("decode", (InboxAddress("n", "h", 1),), KEY)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=KVTransfer) == made
