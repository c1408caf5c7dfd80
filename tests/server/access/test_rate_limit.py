"""Limits per API key: buckets on a clock of our own, and through the server."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.client import SHARED, Client
from quire.core.errors import ConfigError
from quire.server.access.authentication import ApiKey, read_key_file
from quire.server.access.rate_limit import RateLimits, TokenBucket
from quire.server.generation.service import Service
from quire.server.generation.shared import Shared
from quire.server.http.http_errors import ApiError
from quire.server.server_options import ServerOptions
from quire.settings.config import EngineConfig
from tests.server.conftest import run_in_thread


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 30)), max_size=60))
def test_a_bucket_gives_no_more_than_its_rate_and_no_less(events):
    clock = Clock()
    bucket, taken = TokenBucket(60, clock), 0.0
    for pause, amount in events:
        clock.now += pause
        seconds = bucket.wait(amount)
        assert seconds <= 60
        clock.now += seconds
        assert bucket.wait(amount) == pytest.approx(0, abs=1e-6)
        bucket.take(amount)
        taken += amount
        # A full bucket at the start, and one a second since.
        assert taken <= 60 + (clock.now - 100) + 1e-6


def test_a_bucket_saves_up_a_minute_and_no_more():
    clock = Clock()
    bucket = TokenBucket(60, clock)
    clock.now += 3600
    assert bucket.wait(60) == 0
    bucket.take(60)
    assert bucket.wait(1) == pytest.approx(1)


def refused(limits: RateLimits, key: ApiKey, num_tokens: int) -> ApiError:
    with pytest.raises(ApiError) as caught:
        limits.admit(key, num_tokens)
    assert (caught.value.status, caught.value.type) == (429, "rate_limit_exceeded")
    return caught.value


def test_requests_and_tokens_are_limited_apart_and_keys_too():
    clock, rejections = Clock(), Counter()
    limits = RateLimits(rejections, clock)
    few = ApiKey.create("few", rpm=2)
    short = ApiKey.create("short", tpm=600)
    free = ApiKey.create("free")
    for _ in range(2):
        limits.admit(few, 10_000)
    assert refused(limits, few, 1).headers["Retry-After"] == "30"
    limits.reserve(short, 500, 0).use(400)  # 300 owed
    assert refused(limits, short, 60).headers["Retry-After"] == "36"
    for _ in range(1000):
        limits.reserve(free, 1000, 1000).use(3000)
    clock.now += 36
    limits.admit(short, 60)
    limits.admit(few, 1)
    assert rejections == {"key_requests": 1, "key_tokens": 1}


def test_a_prompt_larger_than_the_bucket_is_taken_when_it_is_full():
    clock = Clock()
    limits = RateLimits(Counter(), clock)
    key = ApiKey.create("k", tpm=60)
    limits.admit(key, 120)
    assert refused(limits, key, 1).headers["Retry-After"] == "61"


def test_a_refused_request_takes_nothing():
    clock = Clock()
    limits = RateLimits(Counter(), clock)
    key = ApiKey.create("k", rpm=2, tpm=100)
    limits.admit(key, 100)
    refused(limits, key, 50)
    clock.now += 31
    limits.admit(key, 50)  # the second of its requests


def test_a_key_took_many_times_its_tokens_at_once():
    """Output was counted when an answer had ended, so all that began before had any length."""
    clock = Clock()
    limits, key = RateLimits(Counter(), clock), ApiKey.create("k", tpm=200)
    first = limits.reserve(key, 10, 1500)
    for _ in range(19):
        with pytest.raises(ApiError, match="200 tokens a minute"):
            limits.reserve(key, 10, 1500)
    first.use(100)
    first.settle()  # its client has left
    second = limits.reserve(key, 10, 80)
    assert refused(limits, key, 1).headers["Retry-After"] == "1"
    second.use(80)
    second.use(60)  # more than it was reckoned to take
    second.settle()
    assert refused(limits, key, 1).headers["Retry-After"] == "19"


def test_a_request_that_the_queue_refuses_keeps_none_of_its_tokens():
    limits, key = RateLimits(Counter(), Clock()), ApiKey.create("k", tpm=200)
    limits.reserve(key, 100, 100).settle(100)
    limits.admit(key, 200)


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text(
        "k-small infer,read name=small rpm=2\n"
        "k-tokens infer tpm=30 weight=0.5 name=tokens\n"
        "k-large infer weight=4 name=team@large\n"
        "k-plain infer\n"
    )
    return str(path)


def test_through_the_server(engine, key_file):
    options = ServerOptions(port=0, uvicorn_log_level="warning")
    service = Service(engine, EngineConfig(), Shared(options, tuple(read_key_file(key_file))))

    def ask(key: str, prompt: str = "ab", **fields: object) -> httpx2.Response:
        body = {"prompt": prompt, "max_tokens": 4, **fields}
        headers = {"authorization": f"Bearer {key}"}
        return client.post("/v1/completions", json=body, headers=headers)

    with run_in_thread(service) as url, httpx2.Client(base_url=url, timeout=60) as client:
        assert [ask("k-small").status_code for _ in range(3)] == [200, 200, 429]
        answer = ask("k-small", stream=True)
        assert answer.json()["error"]["type"] == "rate_limit_exceeded"
        assert 1 <= int(answer.headers["retry-after"]) <= 30
        assert [ask("k-tokens", "0123456789").status_code for _ in range(3)] == [200, 200, 429]
        assert [ask(key).status_code for key in ("k-large", "k-plain") * 3] == [200] * 6
        metrics = client.get("/metrics", headers={"authorization": "Bearer k-small"}).text
    assert 'rejections_total{engine="0",model_name="quire-tiny",reason="key_tokens"} 1.0' in metrics
    assert engine.clients[:5] == [Client("small")] * 2 + [Client("tokens", 0.5)] * 2 + [
        Client("team@large", 4.0)
    ]
    assert engine.clients[5].client_id.startswith("sha-") and "plain" not in str(engine.clients)


def test_without_keys_all_are_one_client(client, engine):
    client.post("/v1/completions", json={"prompt": "a"}, headers={"authorization": "Bearer any"})
    assert engine.clients == [SHARED]


@pytest.mark.parametrize(
    "fields",
    ["weight=0", "weight=nan", "weight=inf", "weight=x", "rpm=0", "tpm=-1", "rpm=1.5", "name=",
     "name=a/b", "speed=3", "rpm=1 rpm=2", "rpm", "name=a\nother infer name=a"],
)  # fmt: skip
def test_wrong_fields_are_refused_without_the_key(tmp_path, fields):
    path = tmp_path / "keys"
    path.write_text(f"secret infer {fields}\n")
    with pytest.raises(ConfigError, match="--api-key-file") as caught:
        read_key_file(str(path))
    assert "secret" not in str(caught.value).replace(str(path), "")


@pytest.mark.parametrize("limit", [{"max_tokens": 100}, {"max_tokens": 20, "n": 8}, {}])
def test_requests_at_once_had_any_number_of_tokens(engine, limit):
    """A key with 200 tokens a minute had 60,000: answers counted when they had ended."""
    engine.hold_after = 1
    options = ServerOptions(port=0, uvicorn_log_level="warning")
    shared = Shared(options, (ApiKey.create("k", tpm=200),))
    body = {"messages": [{"role": "user", "content": "a"}], **limit}

    def ask() -> int:
        headers = {"authorization": "Bearer k"}
        return client.post("/v1/chat/completions", json=body, headers=headers).status_code

    with (
        run_in_thread(Service(engine, EngineConfig(), shared)) as url,
        httpx2.Client(base_url=url, timeout=60) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(ask)
        while not engine.num_held:
            time.sleep(0.01)
        assert [ask() for _ in range(3)] == [429] * 3
        engine.released.set()
        assert first.result() == 200
        if limit == {"max_tokens": 100}:
            assert ask() == 200  # what the first one did not use has come back
