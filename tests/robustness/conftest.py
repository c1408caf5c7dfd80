"""A real server on a tiny checkpoint, and a crowd of clients of which none may go unanswered."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from benchmarks.robustness import server_state
from tests.servers import Faults, start_server
from tests.sizes import sized
from tools.serve_process import ServeProcess

PATH = "/v1/completions"
#: More than fits at once, so that some wait; long enough to be caught in the midst.
LONG = {"prompt": "Once", "max_tokens": 1900, "ignore_eos": True, "seed": 1}
#: For crowds whose answers are read to their ends.
MEDIUM = {**LONG, "max_tokens": 800}
SHORT = {**LONG, "max_tokens": 8}
#: A server whose engine is lost again and again waits twice as long each time before it starts it.
KILLS_OF_A_SERVER = 4
#: A bound that says nothing of the service: only that no test waits for ever.
PATIENCE_SECONDS = 240.0


@pytest.fixture(scope="session")
def arguments(crowded_arguments: list[str]) -> list[str]:
    """A tiny checkpoint with one token per byte, and settings that fit it."""
    return crowded_arguments


@pytest.fixture
def start(arguments: list[str]) -> Iterator[Callable[..., ServeProcess]]:
    """Start a server with further flags; what still runs at the end of the test is killed."""
    running: list[ServeProcess] = []

    def run(*flags: str, **settings: Any) -> ServeProcess:
        running.append(start_server([*arguments, *flags], **settings))
        return running[-1]

    yield run
    for process in running:
        process.__exit__()


@dataclass(frozen=True)
class Ending:
    """How a request ended for its client.

    Attributes:
        status: HTTP status.
        text: Of the first choice.
        reason: Finish reason, None when it ended with an error.
        error: The error body or event.
    """

    status: int
    text: str = ""
    reason: str | None = None
    error: dict[str, Any] | None = None
    headers: Any = None


def ask(url: str, body: dict[str, Any]) -> Ending:
    """Send a request and read it to its end; a connection that breaks raises."""
    with httpx2.stream("POST", f"{url}{PATH}", json=body, timeout=120) as response:
        if response.status_code != 200 or not body.get("stream"):
            content = json.loads(response.read())
            if response.status_code != 200:
                return Ending(
                    response.status_code, error=content["error"], headers=response.headers
                )
            choice = content["choices"][0]
            return Ending(200, choice["text"], choice["finish_reason"])
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line[:1] == "d"]
        assert events.pop() == "[DONE]"
        text, reason, error = "", None, None
        for event in map(json.loads, events):
            assert reason is None and error is None, "something after the end"
            error = event.get("error")
            if error is None:
                text += event["choices"][0]["text"]
                reason = event["choices"][0]["finish_reason"]
        return Ending(200, text, reason, error)


_WHOLE: dict[str, Ending] = {}


def whole(url: str, body: dict[str, Any]) -> Ending:
    """Return the ending of a request that is alone; all servers here have the same checkpoint."""
    key = json.dumps(body)
    if key not in _WHOLE:
        _WHOLE[key] = ask(url, body)
        assert _WHOLE[key].reason == "length", _WHOLE[key]
    return _WHOLE[key]


class Crowd:
    """Clients that ask at the same time; every second one has its answer streamed."""

    def __init__(self, url: str, bodies: list[dict[str, Any]]) -> None:
        self.url = url
        self._pool = ThreadPoolExecutor(len(bodies))
        self._bodies = [body | {"stream": bool(number % 2)} for number, body in enumerate(bodies)]
        self._answers: list[Future[Ending]] = [
            self._pool.submit(ask, url, body) for body in self._bodies
        ]

    def wait_until_running(self) -> None:
        """Wait until all are taken and some compute.

        A client that has its whole answer by then asks again: the machine stalled the test.
        """
        with httpx2.Client(base_url=self.url) as client:
            wait_for(lambda: self._is_running(client))

    def catch(self, engine: psutil.Process) -> None:
        """Have the engine stand still while all are taken and some compute."""
        with httpx2.Client(base_url=self.url) as client:
            while True:
                self.wait_until_running()
                engine.suspend()
                if self._stay_pending(client):  # not answered without the client having seen it yet
                    return
                engine.resume()

    def _is_running(self, client: httpx2.Client) -> bool:
        for number, answer in enumerate(self._answers):
            if self._is_answered(answer):
                self._answers[number] = self._pool.submit(ask, self.url, self._bodies[number])
        if not self._are_pending(client):
            return False
        return server_state.counters(client)["num_requests_running"] > 0

    def _are_pending(self, client: httpx2.Client) -> bool:
        pending: int = client.get("/health/progress").json()["pending"]
        return pending >= len(self._answers)

    def _stay_pending(self, client: httpx2.Client) -> bool:
        """Whether they are when the server has read what the engine had sent before."""
        for _ in range(4):
            if not self._are_pending(client):
                return False
            time.sleep(0.05)
        return True

    @staticmethod
    def _is_answered(answer: Future[Ending]) -> bool:
        return answer.done() and answer.result().reason is not None

    def endings(self) -> list[Ending]:
        """Wait for every answer; a client without one raises."""
        with self._pool:
            return [answer.result() for answer in self._answers]


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for a condition."""
    begin = time.monotonic()
    while not condition():
        waited = time.monotonic() - begin
        assert waited < seconds
        time.sleep(min(0.01 + waited / 20, 0.1))  # asking is work, for the server too


def is_ready(url: str) -> bool:
    """Return what a load balancer would be told."""
    return httpx2.get(f"{url}/health/ready").status_code == 200


def assert_nothing_left(url: str) -> None:
    """No request, no block, the pool whole; what was taken has ended."""
    with httpx2.Client(base_url=url, timeout=60) as client:
        server_state.wait_until_idle(client)
        assert server_state.cache_state(client) == (0, "ok")


@pytest.fixture
def times(request: pytest.FixtureRequest) -> int:
    """How often a fault strikes that strikes again and again."""
    number: int = request.config.getoption("--fault-times")
    return number


@pytest.fixture
def dear_times(request: pytest.FixtureRequest, times: int) -> int:
    """The same for one that takes seconds of both cores: once unless a number is asked for."""
    words = request.config.invocation_params.args
    is_told = any(str(word).startswith("--fault-times") for word in words)
    return times if is_told else sized(1, times)


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    """Faults for the processes of a server; see ``faulty/sitecustomize.py``."""
    return Faults(tmp_path / "faults")
