"""A Ray cluster whose nodes are processes of this machine."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from tests.robustness.conftest import PATIENCE_SECONDS, wait_for
from tools.serve_process import ROOT

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="run scripts/test_ray"
)


class RayCluster:
    """A head without processors, and nodes of one each: ranks are on nodes of their own.

    Args:
        flags: Of ``tools.ray_cluster``, for another one.
    """

    def __init__(self, *flags: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.ray_cluster", *flags],
            cwd=ROOT,
            env=os.environ | {"QUIRE_LOG_LEVEL": "debug"},  # actors have it: they log something
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def add(self) -> None:
        """Add a node."""
        assert self._process.stdin is not None
        self._process.stdin.write("add\n")
        self._process.stdin.flush()
        assert self._line() == "added"

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE_SECONDS)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[RayCluster]:
    before = {process.pid for process in psutil.process_iter()}
    cluster = RayCluster(*getattr(request, "param", ()))
    assert cluster.address
    yield cluster
    cluster.end()
    wait_for(lambda: not ours(before), PATIENCE_SECONDS)


def ours(before: set[int]) -> list[psutil.Process]:
    """Return processes of Ray that were not there before."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid not in before and "ray" in process.name():
                found.append(process)
    return found


def kill_node_of(process: psutil.Process) -> None:
    """Kill all processes of an actor's node, as when it loses power."""
    node = process.parent()
    assert node is not None and "raylet" in node.name(), node
    for one in (node, *node.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            one.kill()
