"""Bounds of the queue, and when to come back."""

from __future__ import annotations

import threading
import time

import pytest

from quire.server.access.waiting_limit import WaitingLimit
from quire.server.http.http_errors import ApiError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def refused(admission: WaitingLimit, sizes: list[int]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        admission.admit(sizes)
    return caught.value


def test_requests_and_tokens_are_bounded_apart():
    admission = WaitingLimit(3, 100, Clock())
    places = admission.admit([40, 40])
    assert refused(admission, [21]).status == 429
    assert refused(admission, [1, 1]).status == 429
    places += admission.admit([20])
    assert (admission.num_reqs, admission.num_tokens) == (3, 100)
    for place in places:
        place.remove(served=True)
        place.remove(served=True)
    assert (admission.num_reqs, admission.num_tokens) == (0, 0)


def test_a_full_queue_is_open_to_clients_that_have_less_than_their_share():
    """Four bodies of 1,024 prompts of one key had the requests of all others refused."""
    admission = WaitingLimit(8, 800, Clock())
    first = admission.admit([100] * 8, "a")
    with pytest.raises(ApiError, match="Waiting prompts: 8, with 800 tokens"):
        admission.admit([1], "a")
    second = admission.admit([100] * 4, "b")  # a half
    for client, sizes in (("a", [1]), ("b", [1]), ("c", [1] * 3), ("c", [267])):
        with pytest.raises(ApiError):
            admission.admit(sizes, client)
    third = admission.admit([100, 166], "c")  # a third
    for place in (*first, *second):
        place.remove(served=True)
    assert (admission.num_reqs, admission.num_tokens) == (2, 266)
    assert len(admission.admit([89] * 6, "a")) == 6, "there is room again"
    for place in third:
        place.remove(served=False)
    assert admission.num_reqs == 6


def test_an_idle_server_takes_even_what_is_too_large():
    admission = WaitingLimit(1, 10, Clock())
    (place, *_) = admission.admit([50, 50])
    assert admission.num_reqs == 2
    place.remove(served=False)


def test_retry_after_follows_the_measured_rate():
    clock = Clock()
    admission = WaitingLimit(4, 1000, clock)
    assert refused_after(admission, clock) == "1", "nothing measured yet"
    for _ in range(20):  # two requests and 200 tokens a second
        clock.now += 0.5
        (place,) = admission.admit([100])
        place.remove(served=True)
    admission.admit([0] * 4)
    # Eight requests too many at two a second.
    assert refused(admission, [0] * 8).headers["Retry-After"] == "4"
    # Nine take half a second longer: a client that comes after four seconds would be refused.
    assert refused(admission, [0] * 9).headers["Retry-After"] == "5"
    # 1400 tokens too many at 200 a second take longer than one request too many.
    assert refused(admission, [2400]).headers["Retry-After"] == "7"
    clock.now += 1000
    assert refused(admission, [0]).headers["Retry-After"] == "1", "too old to tell"


def refused_after(admission: WaitingLimit, clock: Clock) -> str:
    places = admission.admit([0] * 4)
    error = refused(admission, [0])
    for place in places:
        place.remove(served=False)
    assert error.type == "server_overloaded"
    return error.headers["Retry-After"]


def test_a_draining_server_refuses_everything():
    admission = WaitingLimit(4, None, Clock())
    admission.draining = True
    error = refused(admission, [1])
    assert error.status == 503 and error.headers["Retry-After"] == "1"


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_over_http(serve, engine, stream):
    engine.hold_after = 0
    client = serve(max_num_queued_reqs=1)
    body = {"prompt": "a", "max_tokens": 2, "stream": stream}
    answers = []
    waiting = threading.Thread(
        target=lambda: answers.append(client.post("/v1/completions", json=body))
    )
    waiting.start()
    while not engine.open_requests:
        time.sleep(0.005)
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 429
    assert response.json()["error"]["type"] == "server_overloaded"
    assert int(response.headers["retry-after"]) >= 1
    engine.released.set()
    waiting.join(60)
    assert answers[0].status_code == 200
    # Whether served, failed or gone: the place is free again.
    assert client.post("/v1/completions", json=body).status_code == 200
    engine.fail_after = 0
    client.post("/v1/completions", json=body)
    engine.fail_after = None
    assert client.post("/v1/completions", json=body).status_code == 200


def test_no_more_run_at_once_than_the_limit(live):
    """``--max-num-seqs`` is 16 here; what comes on top waits, and runs nothing."""
    body = {"prompt": ["a"] * 18, "max_tokens": 14000, "ignore_eos": True, "stream": True}
    with live.http.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        live.wait_until_running(16)
        live.wait_until_waiting(2)
        assert live.metric("quire:num_requests_running") == 16
    live.wait_until_idle()
