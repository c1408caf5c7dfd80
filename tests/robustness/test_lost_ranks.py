"""Processes that compute a model together are killed under load, again and again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.ports import free_ports
from tests.preforked import children
from tests.robustness.conftest import (
    KILLS_OF_A_SERVER,
    PATIENCE_SECONDS,
    SHORT,
    Crowd,
    Ending,
    ask,
    assert_nothing_left,
    is_ready,
    wait_for,
)
from tests.servers import start_server
from tests.sizes import sized
from tools.serve_process import ServeProcess

#: Long enough to be caught in the midst, also by ranks that exchange by a network.
BODY: dict[str, Any] = {**SHORT, "max_tokens": 100}
#: Of those whose rank is killed: longer than any stall of the machine that they are looked at on.
CAUGHT = {**BODY, "max_tokens": 1900}
#: For the service to be healthy again, less the time in which its processes could run and had no
#: core: where torch joins ranks, each start of one takes two seconds of a core. Judged where other
#: tests do not run.
HEALTHY_SECONDS = sized(PATIENCE_SECONDS, 20.0)


class OneMachine:
    """A server whose ranks are its engine's children.

    Attributes:
        losses: What there is to kill.
    """

    losses = ("a rank",)

    def __init__(self, arguments: list[str], flags: list[str]) -> None:
        self.server = start_server([*arguments, *flags])

    def kill(self, loss: str) -> None:
        """Kill a rank."""
        children(self.server.engine())[0].kill()

    def processes(self) -> list[psutil.Process]:
        """Return all that are running."""
        return tree(self.server)

    def end(self) -> int:
        return self.server.end()


class TwoMachines:
    """A server, and a process that has its other ranks, told to be on another machine.

    Args:
        arguments: Model and limits.
    """

    losses = ("a rank", "the machine")

    def __init__(self, arguments: list[str]) -> None:
        flags = ["-tp", "2", "--nnodes", "2", "--master-port", str(free_ports())]
        self._other = [*arguments, *flags, "--node-rank", "1", "--headless"]
        self._node = self._start()
        self.server = start_server([*arguments, *flags], QUIRE_MACHINE_ID="0")

    def _start(self) -> ServeProcess:
        return start_server(self._other, QUIRE_MACHINE_ID="1")

    def kill(self, loss: str) -> None:
        """Kill a rank, or its machine, which another one replaces."""
        if loss == "a rank":
            children(psutil.Process(self._node.popen.pid))[0].kill()
            return
        self._node.__exit__()
        self._node = self._start()

    def processes(self) -> list[psutil.Process]:
        """Return all that are running."""
        return tree(self.server) + tree(self._node)

    def end(self) -> int:
        code = self.server.end()
        return code or self._node.end()


Kind = OneMachine | TwoMachines
KINDS: dict[str, Callable[[list[str]], Kind]] = {
    "a shard": lambda arguments: OneMachine(arguments, ["-tp", "2"]),
    "a stage": lambda arguments: OneMachine(arguments, ["-pp", "2"]),
    "another machine": TwoMachines,
}


def tree(server: ServeProcess) -> list[psutil.Process]:
    """Return a process and those that it has started, and these."""
    own = psutil.Process(server.popen.pid)
    return [own, *own.children(recursive=True)]


def seconds_without_core(process: psutil.Process) -> float:
    """Return how long it could have run, and others did: 0 where the kernel does not say."""
    try:
        waited = Path(f"/proc/{process.pid}/schedstat").read_text().split()[1]
    except (OSError, IndexError):
        return 0.0
    return int(waited) / 1e9


def has_ended(process: psutil.Process) -> bool:
    """Tell whether a process has ended, its exit code fetched or not."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def segments() -> set[str]:
    """Return what lies in shared memory under a name."""
    folder = Path("/dev/shm")
    return set(os.listdir(folder)) if folder.is_dir() else set()


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_is_killed(
    kind: str,
    arguments: list[str],
    dear_times: int,
    record_property: Callable[[str, float], None],
) -> None:
    """Each request ends once, with its answer or an error that names the rank; then it serves."""
    before, left = segments(), dear_times
    while left > 0:
        ranks = KINDS[kind](arguments)
        try:
            whole = ask(ranks.server.wait_ready(), BODY)
            rounds = min(KILLS_OF_A_SERVER // len(ranks.losses), left)
            for loss in ranks.losses * rounds:
                record_property("served_again_seconds", survive(ranks, loss, whole))
            left -= rounds
            assert_nothing_left(ranks.server.address)
            started = children(psutil.Process(ranks.server.popen.pid), recursive=True)
        finally:
            code = ranks.end()
        assert code == 0, ranks.server.stderr
        assert "[rank 0]" not in ranks.server.stderr, "nor does the log name another"
        for child in started:
            wait_for(partial(has_ended, child))  # one that was killed may not have yet
    assert segments() <= before


def survive(ranks: Kind, loss: str, whole: Ending) -> float:
    """Kill a rank under load; return the seconds until it is healthy."""
    url = ranks.server.address
    crowd = Crowd(url, [CAUGHT] * 8)
    engine = ranks.server.engine()
    crowd.catch(engine)
    before = {process: seconds_without_core(process) for process in ranks.processes()}
    killed, now = time.monotonic(), time.time()
    ranks.kill(loss)
    engine.resume()
    for ending in crowd.endings():
        assert ending.error is not None and ending.error["code"] == 503, ending
        assert "rank 1" in ending.error["message"], ending
    wait_for(lambda: is_ready(url), PATIENCE_SECONDS)
    seconds = time.monotonic() - killed
    # They wait for each other meanwhile: only the one counts that waited longest.
    waited = max(
        seconds_without_core(one) - before.get(one, 0.0)
        for one in ranks.processes()
        if one in before or one.create_time() >= now  # else when it waited is not known
    )
    assert seconds - waited < HEALTHY_SECONDS
    assert ask(url, BODY) == whole
    return seconds
