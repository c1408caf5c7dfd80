"""The same fault again and again under load: ``scripts/faults --times 50`` runs them at length."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from benchmarks.robustness import server_state
from tests.robustness.conftest import (
    LONG,
    MEDIUM,
    SHORT,
    Crowd,
    ask,
    assert_nothing_left,
    is_ready,
    wait_for,
    whole,
)
from tests.servers import Faults
from tools.serve_process import ServeProcess

Start = Callable[..., ServeProcess]


@pytest.mark.parametrize(
    ("token_id", "status", "word"), [(300, 500, "injected fault"), (301, 503, "[memory]")]
)
def test_requests_that_fail_their_step(
    faulty_server: tuple[ServeProcess, Faults], times: int, token_id: int, status: int, word: str
) -> None:
    """Steps fail while others run: the requests at fault end, all others get every token."""
    url = faulty_server[0].address
    expected = whole(url, MEDIUM)
    victim = {**SHORT, "prompt": [65, *[token_id] * 4, 66]}
    stop, texts = threading.Event(), []

    def load() -> None:
        while not stop.is_set():
            texts.append(ask(url, MEDIUM | {"stream": True}).text)

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(times):
        ending = ask(url, victim | {"stream": bool(number % 2)})
        assert ending.error is not None and ending.reason is None
        assert (ending.error["code"], word in ending.error["message"]) == (status, True), ending
    stop.set()
    for thread in threads:
        thread.join()
    assert set(texts) == {expected.text}
    with httpx2.Client(base_url=url) as client:
        assert server_state.counters(client)["engine_restarts"] == 0
    assert_nothing_left(url)


@pytest.mark.parametrize(
    ("flags", "method", "word"),
    [((), "kill", "SIGKILL"), (("--watchdog-timeout", "5"), "suspend", "--watchdog-timeout")],
)
def test_engine_lost(start: Start, times: int, flags: Any, method: str, word: str) -> None:
    """Each request ends once, with an error that says why; then the next engine serves."""
    server = start(*flags)
    url = server.wait_ready()
    answer = whole(url, LONG)
    for _ in range(times):
        crowd = Crowd(url, [LONG] * 8)
        engine = server.engine()
        crowd.catch(engine)
        getattr(engine, method)()
        lost = [ending for ending in crowd.endings() if ending != answer]  # some were faster
        assert lost
        for ending in lost:
            assert ending.error is not None and ending.error["code"] == 503, ending
            assert word in ending.error["message"], ending
        wait_for(lambda: is_ready(url))
    assert ask(url, SHORT).reason == "length"
    assert_nothing_left(url)
    assert server.end() == 0
