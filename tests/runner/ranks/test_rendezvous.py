"""Ranks come to their driver: in any order, each once, with the key; others are sent away."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import SimpleNamespace

import msgspec
import pytest

from quire.core.errors import ConfigError, ModelLoadError
from quire.runner.ranks import rendezvous as meeting
from quire.runner.ranks.rendezvous import Rendezvous, hello, join, machine_id
from quire.system.connections import framed, introduce
from tests.ports import free_ports

LOOPBACK = ("127.0.0.1", 0)


@pytest.fixture
def threads():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def closed(*connections: socket.socket) -> None:
    for connection in connections:
        connection.close()


def test_ranks_come_in_any_order_and_are_returned_in_theirs(threads):
    driver = Rendezvous(LOOPBACK, "k")
    came = [threads.submit(join, driver.address, hello(rank, "k")) for rank in (3, 1, 2)]
    links = driver.gather([1, 2, 3], seconds=60)
    assert [link.hello.rank for link in links] == [1, 2, 3]
    assert {link.hello.machine for link in links} == {machine_id()}
    closed(*(link.connection for link in links), *(one.result() for one in came))


def test_a_rank_waits_until_its_driver_listens(threads):
    address = ("127.0.0.1", free_ports())
    came = threads.submit(join, address, hello(1, ""))
    driver = Rendezvous(address, "")
    (link,) = driver.gather([1], seconds=60)
    assert link.connection.getpeername() == came.result().getsockname()
    closed(link.connection, came.result())


@dataclass
class Strange:
    """One that does not belong."""

    rank: int
    key: str
    version: str
    expected: str


@pytest.mark.parametrize(
    "one",
    [
        Strange(1, "other", "", "QUIRE_CLUSTER_KEY must be the same"),
        Strange(7, "k", "", "must be 1 to 2; got 7"),
        Strange(1, "k", "0.0.9", "got 0.0.9 on"),
    ],
)
def test_who_does_not_belong_is_told_why(threads, one):
    driver = Rendezvous(LOOPBACK, "k")
    waiting = threads.submit(driver.gather, [1, 2], seconds=60)
    said = hello(one.rank, one.key)
    if one.version:
        said = msgspec.structs.replace(said, version=one.version)
    with pytest.raises(ConfigError, match=one.expected):
        join(driver.address, said)
    first = join(driver.address, hello(1, "k"))
    with pytest.raises(ConfigError, match="each rank must connect once"):
        join(driver.address, hello(1, "k"))
    second = join(driver.address, hello(2, "k"))
    closed(first, second, *(link.connection for link in waiting.result()))


def test_noise_does_not_hold_up_a_meeting(threads):
    """Strangers say nothing, half of something, or something else: each would cost seconds."""
    driver = Rendezvous(LOOPBACK, "")
    waiting = threads.submit(driver.gather, [1], seconds=60)
    with ExitStack() as stack:
        no_utf8 = framed(b"\x83\xa4rank\x01\xa3key\xa3\xed\xa0\x80\xa7version\xa0")
        noises = [b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", b"\x01\0\0\0\xc1", no_utf8] * 8
        strangers = []
        for noise in noises:
            strangers.append(stack.enter_context(socket.create_connection(driver.address)))
            strangers[-1].sendall(noise)
        came = join(driver.address, hello(1, ""))
        (link,) = waiting.result()
        for stranger in strangers:
            with suppress(ConnectionResetError):
                while stranger.recv(64):
                    pass
    closed(link.connection, came)


def test_a_greeting_that_is_no_utf8_ends_no_meeting(threads):
    """Machine 1 could never join after it: the server's thread that greets had ended."""
    driver = Rendezvous(LOOPBACK, "")
    waiting = threads.submit(driver.gather, [1], seconds=60)
    with socket.create_connection(driver.address, timeout=60) as stranger:
        introduce(stranger, "", b"\x83\xa4rank\x01\xa3key\xa3\xed\xa0\x80\xa7version\xa0")
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    came = join(driver.address, hello(1, ""))
    (link,) = waiting.result()
    closed(link.connection, came)


def test_another_rank_may_come_in_the_place_of_one_that_is_gone(threads):
    """A machine that began again while others were awaited was told to come only once."""
    driver = Rendezvous(LOOPBACK, "")
    waiting = threads.submit(driver.gather, [1, 2], seconds=60)
    join(driver.address, hello(1, "")).close()
    again = join(driver.address, hello(1, ""))
    second = join(driver.address, hello(2, ""))
    links = waiting.result()
    assert links[0].connection.getpeername() == again.getsockname()
    closed(again, second, *(link.connection for link in links))


def test_a_driver_s_port_that_another_process_has_is_said(monkeypatch):
    has_answered = threading.Event()
    # The time is up with the first answer, however late that comes.
    clock = SimpleNamespace(monotonic=lambda: 100.0 * has_answered.is_set(), sleep=time.sleep)
    monkeypatch.setattr(meeting, "time", clock)

    def answer(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                one, _ = server.accept()
                with one:
                    one.recv(1)
                    one.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    has_answered.set()

    with socket.create_server(LOOPBACK) as server:
        thread = threading.Thread(target=answer, args=[server])
        thread.start()
        with pytest.raises(ModelLoadError, match="rank 0 must listen at 127.0.0.1.*got a message"):
            join(server.getsockname(), hello(1, ""), seconds=60)
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_ranks_that_do_not_come_are_named():
    with pytest.raises(ModelLoadError, match=r"within 0.3 s; got none for 1, 2\."):
        Rendezvous(LOOPBACK, "").gather([1, 2], seconds=0.3)


def test_a_launcher_that_knows_better_ends_the_wait():
    def check() -> None:
        raise ModelLoadError("[ray] no node has room")

    with pytest.raises(ModelLoadError, match="no node has room"):
        Rendezvous(LOOPBACK, "").gather([1], check)


def test_a_driver_that_never_listens_is_said():
    address = ("127.0.0.1", free_ports())
    with pytest.raises(ModelLoadError, match="rank 0 must listen at 127.0.0.1"):
        join(address, hello(1, ""), seconds=0.3)


def test_a_taken_port_is_a_setting_at_fault():
    with (
        socket.create_server(LOOPBACK) as taken,
        pytest.raises(ConfigError, match="--master-port must be of this machine and free"),
    ):
        Rendezvous(taken.getsockname(), "")


def test_machines_are_told_apart_by_name(monkeypatch):
    own = machine_id()
    monkeypatch.setenv("QUIRE_MACHINE_ID", "other")
    assert machine_id() == "other" != own
