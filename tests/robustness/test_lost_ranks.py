"""Processes that compute a model together are killed under load, again and again."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.preforked import children
from tests.robustness.conftest import (
    KILLS_OF_A_SERVER,
    SHORT,
    Crowd,
    Ending,
    ask,
    assert_nothing_left,
    is_ready,
    wait_for,
)
from tests.servers import start_server
from tools.serve_process import ServeProcess

#: Long enough to be caught in the midst, also by ranks that exchange by a network.
BODY: dict[str, Any] = {**SHORT, "max_tokens": 100}
#: Within which the service must be healthy again.
HEALTHY_SECONDS = 20.0


class OneMachine:
    """A server whose ranks are its engine's children."""

    def __init__(self, arguments: list[str], flags: list[str]) -> None:
        self.server = start_server([*arguments, *flags])

    def kill(self) -> None:
        """Kill a rank."""
        children(self.server.engine())[0].kill()

    def end(self) -> int:
        return self.server.end()


class TwoMachines:
    """A server, and a process that has its other ranks, told to be on another machine.

    Args:
        arguments: Model and limits.
        is_whole: All of the other machine is killed, not a rank of it alone.
    """

    def __init__(self, arguments: list[str], is_whole: bool) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
        flags = ["-tp", "2", "--nnodes", "2", "--master-port", port]
        self._other = [*arguments, *flags, "--node-rank", "1", "--headless"]
        self._is_whole = is_whole
        self._node = self._start()
        self.server = start_server([*arguments, *flags], QUIRE_MACHINE_ID="0")

    def _start(self) -> ServeProcess:
        return start_server(self._other, QUIRE_MACHINE_ID="1")

    def kill(self) -> None:
        """Kill a rank, or its machine, which another one replaces."""
        node = psutil.Process(self._node.popen.pid)
        if not self._is_whole:
            children(node)[0].kill()
            return
        self._node.__exit__()
        self._node = self._start()

    def end(self) -> int:
        code = self.server.end()
        return code or self._node.end()


Kind = OneMachine | TwoMachines
KINDS: dict[str, Callable[[list[str]], Kind]] = {
    "a shard": lambda arguments: OneMachine(arguments, ["-tp", "2"]),
    "a stage": lambda arguments: OneMachine(arguments, ["-pp", "2"]),
    "a rank of another machine": lambda arguments: TwoMachines(arguments, False),
    "another machine": lambda arguments: TwoMachines(arguments, True),
}


def is_running(process: psutil.Process) -> bool:
    """Tell whether it is more than an entry that nobody has fetched the end of."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def segments() -> set[str]:
    """Return what lies in shared memory under a name."""
    folder = Path("/dev/shm")
    return set(os.listdir(folder)) if folder.is_dir() else set()


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_is_killed(kind: str, arguments: list[str], times: int) -> None:
    """Each request ends once, with its answer or an error that names the rank; then it serves."""
    before, slowest = segments(), 0.0
    for first in range(0, times, KILLS_OF_A_SERVER):
        ranks = KINDS[kind](arguments)
        try:
            whole = ask(ranks.server.wait_ready(), BODY)
            for _ in range(min(KILLS_OF_A_SERVER, times - first)):
                slowest = max(slowest, survive(ranks, whole))
            assert_nothing_left(ranks.server.address)
            started = psutil.Process(ranks.server.popen.pid).children(recursive=True)
        finally:
            code = ranks.end()
        assert code == 0, ranks.server.stderr
        assert not [child for child in started if is_running(child)]
    assert segments() <= before
    print(f"healthy again after {slowest:.1f} s at most")


def survive(ranks: Kind, whole: Ending) -> float:
    """Kill a rank under load; return the seconds until requests are answered again."""
    url = ranks.server.address
    crowd = Crowd(url, [BODY] * 8)
    crowd.wait_until_running()
    ranks.kill()
    killed = time.monotonic()
    lost = [ending for ending in crowd.endings() if ending != whole]
    assert lost
    for ending in lost:
        assert ending.error is not None and ending.error["code"] == 503, ending
        assert "rank 1" in ending.error["message"], ending
    wait_for(lambda: is_ready(url), HEALTHY_SECONDS)
    assert ask(url, BODY) == whole
    return time.monotonic() - killed
