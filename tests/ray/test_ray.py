"""Ranks on the nodes of a Ray cluster, which are processes of this machine; real kills."""

from __future__ import annotations

import importlib.util
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from quire.core.errors import ConfigError
from quire.runner.ranks import ray_cluster
from tests.ray.conftest import RayCluster, kill_node_of, needs_ray
from tests.robustness.conftest import (
    KILLS_OF_A_SERVER,
    PATIENCE_SECONDS,
    Crowd,
    ask,
    assert_nothing_left,
    is_ready,
    wait_for,
)
from tests.sizes import sized
from tools.serve_process import ServeProcess

BODY: dict[str, Any] = {"prompt": "Once", "max_tokens": 300, "ignore_eos": True, "temperature": 0}
MODEL = ["quire-tiny", "--threads", "1", "--memory", "200MiB", "--max-num-seqs", "4"]
#: Within which the service must be healthy again. With ``--all`` parts that take every core run
#: next to these tests.
HEALTHY_SECONDS = sized(20.0, PATIENCE_SECONDS)
#: Of the log, each time that an engine is lost.
LOSS = "It is started again in"
HERE = re.compile(r"rank 1 on \S+ \(process (\d+)\) is here")


@pytest.fixture(scope="module")
def expected() -> str:
    """What one process answers."""
    with ServeProcess(MODEL) as alone:
        return ask(alone.wait_ready(), BODY).text


def serve_on(cluster: RayCluster) -> ServeProcess:
    flags = ["-tp", "2", "--distributed-executor-backend", "ray"]
    return ServeProcess([*MODEL, *flags], RAY_ADDRESS=cluster.address)


def rank(server: ServeProcess) -> psutil.Process:
    """Return the actor that came last."""
    return psutil.Process(int(HERE.findall(server.stderr)[-1]))


def kill_actor(server: ServeProcess, cluster: RayCluster) -> None:
    rank(server).kill()


def kill_node(server: ServeProcess, cluster: RayCluster) -> None:
    """Kill the rank's node; another one comes."""
    kill_node_of(rank(server))
    threading.Thread(target=cluster.add).start()


@needs_ray
@pytest.mark.parametrize("kill", [kill_actor, kill_node])
def test_a_part_of_a_ray_cluster_is_lost(cluster, expected, kill, request, record_property):
    """Each request ends once, with its answer or an error that says why; then it serves again."""
    times = request.config.getoption("--fault-times")
    for first in range(0, times, KILLS_OF_A_SERVER):
        with serve_on(cluster) as server:
            assert ask(server.wait_ready(), BODY).text == expected
            for _ in range(min(KILLS_OF_A_SERVER, times - first)):
                seconds = survive(server, cluster, kill, expected)
                record_property("served_again_seconds", seconds)
            assert_nothing_left(server.address)
            assert server.end() == 0, server.stderr


def survive(
    server: ServeProcess,
    cluster: RayCluster,
    kill: Callable[[ServeProcess, RayCluster], None],
    expected: str,
) -> float:
    """Kill under load; return the seconds until requests are answered again."""
    num_losses = server.stderr.count(LOSS)
    crowd = Crowd(server.address, [BODY] * 8)
    crowd.wait_until_running()
    kill(server, cluster)
    killed = time.monotonic()
    for ending in crowd.endings():
        if ending.error is None:
            assert (ending.text, ending.reason) == (expected, "length")
        else:
            assert ending.error["code"] == 503 and "rank 1" in ending.error["message"], ending
    wait_for(lambda: server.stderr.count(LOSS) > num_losses, PATIENCE_SECONDS)
    wait_for(lambda: is_ready(server.address), HEALTHY_SECONDS)
    assert ask(server.address, BODY).text == expected
    return time.monotonic() - killed


@needs_ray
def test_logs_of_a_rank_begin_with_its_number(cluster):
    """What a rank logs is in the driver's log, and so is that nodes are small."""
    with serve_on(cluster) as server:
        server.wait_ready()
        line = re.compile(r"\(rank 1 pid=\d+.*\[rank 1\] of this machine")
        wait_for(lambda: line.search(server.stderr) is not None, PATIENCE_SECONDS)
    flags = ["-tp", "2", "--distributed-executor-backend", "ray", "--threads", "3"]
    with ServeProcess([*MODEL[:1], *flags], RAY_ADDRESS=cluster.address) as server:
        wait_for(lambda: "no node has 6 processors" in server.stderr, PATIENCE_SECONDS)


@needs_ray
def test_no_cluster_is_said():
    with ServeProcess(
        [*MODEL, "-tp", "2", "--distributed-executor-backend", "ray"], RAY_ADDRESS="127.0.0.1:9"
    ) as server:
        assert server.popen.wait(PATIENCE_SECONDS) == 1
        server.end()
        assert "needs a cluster; got none" in server.stderr and "Traceback" not in server.stderr


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="run scripts/test_ray")
def test_ray_that_is_not_installed_is_said():
    from quire.runner.ranks.ray_actors import RayActors
    from quire.settings.parallel_layout import ParallelLayout

    with pytest.raises(ConfigError, match=r"needs Ray; it is not installed"):
        RayActors(ParallelLayout(2), 1)


@needs_ray
@pytest.mark.parametrize(
    "address", ["nonsense", "127.0.0.1:\N{SUPERSCRIPT TWO}", "127.0.0.1:99999", "x" * 300 + ":6379"]
)
def test_an_address_that_is_none_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match="needs a cluster; got none"):
        ray_cluster.RayCluster()


@needs_ray
@pytest.mark.parametrize(
    "said", [None, b"", b"\xff" * 64, b"HTTP/1.1 400 Bad Request\r\n\r\n"],
    ids=["silent", "closed", "garbage", "http"],
)  # fmt: skip
def test_a_port_of_something_else_is_refused_before_ray_is_asked(
    said: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray went on for minutes."""
    import ray

    monkeypatch.setattr(ray_cluster, "REACH_SECONDS", 0.5)
    monkeypatch.delattr(ray, "init")
    kept: list[socket.socket] = []

    def answer() -> None:
        peer, _ = listener.accept()
        kept.append(peer)
        if said is not None:
            peer.sendall(said)
            peer.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ConfigError, match="needs a cluster; got none"):
            ray_cluster.RayCluster()
        thread.join()
        kept[0].close()
