"""Blocks in a store of Redis' protocol, with a real one: shared, damaged, slow, gone."""

from __future__ import annotations

import socket
import sys
import threading
import time
from contextlib import suppress
from itertools import chain, repeat
from types import SimpleNamespace

import numpy as np
import pytest

from quire.core.errors import ConfigError
from quire.runner.blocks.tiers import shared_tier
from quire.runner.blocks.tiers.shared_tier import SharedTier
from tests.redis_store import redis
from tests.robustness.conftest import wait_for

SIZE = 2000
MODEL, OTHER = bytes(range(32)), bytes(range(1, 33))


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A store that answers does so in time on any machine; one that does not rests for long."""
    monkeypatch.setattr(shared_tier, "ANSWER_SECONDS", 60.0)
    monkeypatch.setattr(shared_tier, "REST_SECONDS", 60.0)


@pytest.fixture
def open_tier():
    """Return a function that opens a tier."""
    made = []

    def create(url, model=MODEL, **options):
        made.append(SharedTier(url, lambda: model, SIZE, **options))
        made[-1]._fingerprint.result()
        return made[-1]

    yield create
    for tier in made:
        tier.close()


def key(number):
    return bytes([number]) * 32


def block(number):
    return np.random.default_rng(number).integers(0, 256, SIZE, np.uint8)


def test_servers_share_blocks_of_one_model(store, open_tier):
    one, two, other = open_tier(store.url), open_tier(store.url), open_tier(store.url, OTHER)
    for number in range(3):
        assert one.write(key(number), block(number)) and one.write(key(number), block(number))
    assert two.contains(key(0)) is None
    assert two.look_up([key(number) for number in range(5)]) == 3
    assert two.look_up([key(4), key(0)]) == 0
    assert np.array_equal(two.read(key(2)), block(2)) and two.read(key(4)) is None
    assert other.look_up([key(0)]) == 0


@pytest.mark.parametrize("how", ["random", "cut", "longer", "empty", "another", "data"])
def test_a_damaged_value_is_a_block_that_is_not_there(store, open_tier, how):
    tier = open_tier(store.url)
    tier.write(key(1), block(1))
    tier.write(key(2), block(2))
    with redis.Redis.from_url(store.url) as client:
        name = tier._key(key(1))
        value = client.get(name)
        changed = bytearray(value)
        changed[-3] ^= 1
        values = {
            "random": np.random.default_rng(1).bytes(len(value)), "cut": value[:-1],
            "longer": value + b"x" * 10**6, "empty": b"", "data": bytes(changed),
            "another": client.get(tier._key(key(2))),
        }  # fmt: skip
        client.set(name, values[how])
        assert tier.read(key(1)) is None
        assert np.array_equal(tier.read(key(2)), block(2))
        if how != "empty":
            assert tier.num_damaged == 1 and not client.exists(name)
            assert tier.write(key(1), block(1))


def test_a_value_of_another_type_is_a_failure(store, open_tier, monkeypatch):
    monkeypatch.setattr(shared_tier, "REST_SECONDS", 0.0)
    tier = open_tier(store.url)
    with redis.Redis.from_url(store.url) as client:
        client.rpush(tier._key(key(1)), "a list")
    assert tier.read(key(1)) is None and tier.num_failures == 1


def test_a_store_that_goes_away_is_left_alone_and_used_again(store, open_tier, monkeypatch):
    tier = open_tier(store.url)
    assert tier.write(key(1), block(1))
    store.stop()
    assert tier.look_up([key(1)]) == 0 and tier.read(key(1)) is None
    assert tier.contains(key(1)) is False and not tier.write(key(1), block(1))
    assert "not in use" in tier.describe()
    store.start()
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + shared_tier.REST_SECONDS)
    monkeypatch.setattr(shared_tier, "time", later)
    assert tier.contains(key(1)) is None and tier.look_up([key(1)]) == 0
    assert tier.write(key(1), block(1)) and np.array_equal(tier.read(key(1)), block(1))


def test_a_store_that_does_not_answer_is_given_up(open_tier, monkeypatch):
    monkeypatch.setattr(shared_tier, "ANSWER_SECONDS", 0.2)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        tier = open_tier(f"redis://user:secret@127.0.0.1:{listener.getsockname()[1]}/0")
        assert tier.look_up([key(1)]) == 0  # and does not wait for ever
        assert tier.contains(key(1)) is False and "secret" not in tier.describe()


def answer_all(listener, answer, pause, told):
    """Answer what asks for blocks in a store's place, and then nothing more."""
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            told.append("connected")
            with connection, suppress(OSError):
                while asked := connection.recv(2**16):
                    if b"EXISTS" not in asked and b"GETRANGE" not in asked:
                        connection.sendall(b"+OK\r\n" * asked.count(b"*"))
                        continue
                    for part in answer():
                        connection.sendall(part)
                        time.sleep(pause)


@pytest.mark.parametrize(
    ("answer", "pause"),
    [
        (lambda: chain([b":"], repeat(b"1")), 0.05),
        (lambda: chain([b"$1000000000000\r\n"], repeat(b"x" * 1000)), 0.01),
        (lambda: [b":number\r\n"], 0),
        (lambda: [b"*1\r\n" * 10**5], 0),
        (lambda: [b"nothing of the kind\r\n"], 0),
    ],
    ids=["by_the_byte", "endless", "no_number", "nested", "nothing"],
)
def test_an_answer_that_is_none_is_cut_off(open_tier, monkeypatch, answer, pause):
    monkeypatch.setattr(shared_tier, "ANSWER_SECONDS", 0.2)
    told = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=answer_all, args=(listener, answer, pause, told))
        server.start()
        tier = open_tier(f"redis://127.0.0.1:{listener.getsockname()[1]}/0?protocol=2")
        assert tier.look_up([key(1)]) == 0 and tier.num_failures == 1
        assert tier.contains(key(1)) is False, "left alone"
        tier._resumes = 0.0
        assert tier.read(key(1)) is None and tier.num_failures == 2
        wait_for(lambda: len(told) > 1)  # the second one's answer may have been given up before
        assert told == ["connected"] * 2
        tier.close()
        listener.shutdown(socket.SHUT_RDWR)
        server.join()


def test_an_answer_without_end_takes_no_memory(open_tier, monkeypatch):
    """The library keeps all of it: 0.7 GiB came in the time that an answer has."""
    monkeypatch.setattr(shared_tier, "ANSWER_SECONDS", 60.0)
    monkeypatch.setattr(shared_tier, "REST_BYTES", 2**16)
    told, sent = [], []

    def answer():
        yield b"$8000000000\r\n"
        for _ in range(64):
            sent.append(2**20)
            yield bytes(2**20)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=answer_all, args=(listener, answer, 0, told))
        server.start()
        tier = open_tier(f"redis://127.0.0.1:{listener.getsockname()[1]}/0?protocol=2")
        assert tier.read(key(1)) is None and tier.num_failures == 1
        tier.close()
        listener.shutdown(socket.SHUT_RDWR)
        server.join()
    assert sum(sent) < 2**26, "the connection has ended before"


def test_a_model_is_named_before_the_store_is_asked(store):
    go = threading.Event()
    tier = SharedTier(store.url, lambda: MODEL if go.wait() else OTHER, SIZE)
    assert tier.contains(key(1)) is False and tier.look_up([key(1)]) == 0
    go.set()
    assert tier.write(key(1), block(1)) and tier.look_up([key(1)]) == 1
    tier.close()


def test_what_cannot_be_used_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"--kv-offload-url must be redis://"):
        SharedTier("http://localhost", lambda: MODEL, SIZE)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match=r"pip install quire\[redis\]"):
        SharedTier("redis://localhost", lambda: MODEL, SIZE)
