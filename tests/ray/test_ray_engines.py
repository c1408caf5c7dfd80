"""Engines on the nodes of a Ray cluster, which are processes of this machine; real kills."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable

import psutil
import pytest

from quire.core.errors import ModelLoadError
from quire.runner.ranks import ray_cluster
from tests.ray.conftest import RayCluster, kill_node_of, needs_ray
from tests.robustness.conftest import (
    KILLS_OF_A_SERVER,
    PATIENCE_SECONDS,
    SHORT,
    Crowd,
    ask,
    assert_nothing_left,
    is_ready,
    wait_for,
)
from tests.served_engines import answers, total, wait_until_used
from tests.sizes import sized
from tools.serve_process import ServeProcess

pytestmark = needs_ray
RAY = ["--distributed-executor-backend", "ray", "--threads", "1", "--max-num-seqs", "8"]
#: Until what belonged to a lost engine is gone.
GONE_SECONDS = sized(20.0, PATIENCE_SECONDS)
HERE = re.compile(r"engine 1 on \S+ \(process (\d+)\) is here")


@pytest.fixture(scope="module")
def alone() -> list[str]:
    """What one process answers."""
    with ServeProcess(["quire-tiny", "--threads", "1", "--memory", "200MiB"]) as process:
        return answers(process.wait_ready())


def serve_on(cluster: RayCluster, *flags: str) -> ServeProcess:
    own = ["quire-tiny", *RAY, "--memory", "400MiB", *flags]
    return ServeProcess(own, RAY_ADDRESS=cluster.address)


def actor(server: ServeProcess) -> psutil.Process:
    """Return the actor of engine 1 that came last."""
    return psutil.Process(int(HERE.findall(server.stderr)[-1]))


def kill_engine(server: ServeProcess, cluster: RayCluster) -> None:
    for child in actor(server).children():
        child.kill()


def kill_actor(server: ServeProcess, cluster: RayCluster) -> None:
    actor(server).kill()


def kill_node(server: ServeProcess, cluster: RayCluster) -> None:
    """Kill the engine's node; another one comes."""
    kill_node_of(actor(server))
    threading.Thread(target=cluster.add).start()


def kill_keeper(server: ServeProcess, cluster: RayCluster) -> None:
    """Kill what has started the engine."""
    for child in psutil.Process(server.popen.pid).children():
        if "quire.llm.replicas.ray_keeper" in child.cmdline():
            child.kill()


@pytest.mark.parametrize("kill", [kill_engine, kill_actor, kill_node, kill_keeper])
def test_an_engine_of_a_ray_cluster_is_lost(cluster, alone, kill, request, record_property):
    """The others serve on, each request ends once, and the engine is used again."""
    times = request.config.getoption("--fault-times")
    for first in range(0, times, KILLS_OF_A_SERVER):
        with serve_on(cluster, "-dp", "2") as server:
            assert answers(server.wait_ready()) == alone
            wait_until_used(server.address)
            for _ in range(min(KILLS_OF_A_SERVER, times - first)):
                record_property("used_again_seconds", survive(server, cluster, kill, alone))
            assert_nothing_left(server.address)
            gone = actor(server)
            assert server.end() == 0, server.stderr
            assert "Traceback" not in server.stderr
            wait_for(lambda gone=gone: not gone.is_running(), GONE_SECONDS)


def survive(
    server: ServeProcess,
    cluster: RayCluster,
    kill: Callable[[ServeProcess, RayCluster], None],
    alone: list[str],
) -> float:
    """Kill under load; return the seconds until the engine is used again."""
    url = server.address
    body = {**SHORT, "max_tokens": 300}
    whole, children = ask(url, body), actor(server).children()
    assert children, "there is no engine to hit"
    num_here = len(HERE.findall(server.stderr))
    crowd = Crowd(url, [body] * 12)
    crowd.wait_until_running()
    kill(server, cluster)
    killed = time.monotonic()
    for ending in crowd.endings():
        if ending != whole:
            assert ending.error is not None and ending.error["code"] == 503, ending
    assert is_ready(url), "the other engine serves"
    wait_for(lambda: not any(map(psutil.Process.is_running, children)), GONE_SECONDS)
    wait_until_used(url)
    seconds = time.monotonic() - killed
    assert answers(url) == alone
    assert len(HERE.findall(server.stderr)) > num_here, "another one has come"
    return seconds


def test_nothing_is_left_when_the_server_is_killed(cluster):
    with serve_on(cluster, "-dp", "2") as server:
        server.wait_ready()
        lost = [actor(server), *actor(server).children()]
        server.end(signal.SIGKILL)
        wait_for(lambda: not any(process.is_running() for process in lost), GONE_SECONDS)


def test_lines_of_an_engine_begin_with_its_number_and_so_do_its_metrics(cluster):
    with serve_on(cluster, "-dp", "2") as server:
        url = server.wait_ready()
        wait_until_used(url)
        wait_for(lambda: "(engine 1 " in server.stderr, PATIENCE_SECONDS)
        assert total(url, "quire:num_kv_blocks", engine="1")
        assert server.end() == 0


def test_a_prompt_computed_on_another_node_is_found_on_this_one(cluster):
    text, body = "A list of customers, with their towns. " * 12, {**SHORT, "max_tokens": 12}
    roles = ["--disaggregate", "1p1d", "--disaggregate-tokens", "64"]
    with ServeProcess(["quire-tiny", "--threads", "1", "--memory", "100MiB"]) as one:
        url = one.wait_ready()
        expected = [ask(url, {**body, "prompt": f"{i} {text}"}).text for i in range(40)]
    with serve_on(cluster, *roles, "--disaggregate-transport", "tcp") as server:
        url = server.wait_ready()
        for begin in range(0, 40, 4):
            others = Crowd(url, [{**SHORT, "prompt": "Tell", "max_tokens": 1000}] * 3)
            others.wait_until_running()
            numbers = range(begin, begin + 4)
            found = [ask(url, {**body, "prompt": f"{i} {text}"}).text for i in numbers]
            assert found == expected[begin : begin + 4]
            others.endings()
            if num_apart := total(url, "quire:prefill_requests_total", place="apart"):
                break  # at once, unless the others had ended before
        assert num_apart
        assert server.end() == 0


def test_a_cluster_without_room_is_said(cluster, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    monkeypatch.setattr(ray_cluster, "PLACE_SECONDS", 2.0)
    joined = ray_cluster.RayCluster()
    try:
        with pytest.raises(ModelLoadError, match="room for .*'CPU': 5.* or lower --threads"):
            joined.take_room([5, 1], "SPREAD")
    finally:
        joined.close()


def test_no_cluster_is_said():
    with ServeProcess(["quire-tiny", *RAY, "-dp", "2"], RAY_ADDRESS="127.0.0.1:9") as server:
        assert server.popen.wait(PATIENCE_SECONDS) == 1
        server.end()
        assert "needs a cluster; got none" in server.stderr and "Traceback" not in server.stderr


@pytest.mark.parametrize("cluster", [["--nodes", "2", "--cpus", "2"]], indirect=True)
def test_all_ranks_of_an_engine_are_on_one_node(cluster, alone):
    with serve_on(cluster, "-dp", "2", "-tp", "2") as server:
        assert answers(server.wait_ready()) == alone
        wait_until_used(server.address)
        (engine,) = actor(server).children()
        assert len(engine.children()) == 1, "rank 1"
        assert server.end() == 0
