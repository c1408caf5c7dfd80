"""Two machines, as processes of this one that are told to be apart: tokens, and what dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from quire.cli.serve import serve
from quire.distributed.memory_nodes import MemoryNode, cores_of_rank, read_nodes
from tests.ports import free_ports
from tests.preforked import children
from tests.robustness.conftest import is_ready, wait_for
from tests.served_engines import answers
from tests.servers import start_server
from tools.serve_process import ServeProcess


@pytest.fixture
def alone(tiny_server: ServeProcess) -> list[str]:
    """What one process answers."""
    return answers(tiny_server.address)


@pytest.fixture(params=["-tp 2 by shared memory", "-tp 2 by gloo", "-tp 2 -pp 2 by gloo"])
def nodes(request: pytest.FixtureRequest) -> Iterator[tuple[ServeProcess, ServeProcess]]:
    """A machine that serves and one that computes for it."""
    port = str(free_ports())
    sizes, _, transport = request.param.partition(" by ")
    arguments = ["quire-tiny", *sizes.split(), "--nnodes", "2", "--master-port", port]
    arguments += ["--threads", "1", "--memory", "400MiB"]
    other = "machine-1" if transport == "gloo" else "machine-0"
    second = start_server([*arguments, "--node-rank", "1", "--headless"], QUIRE_MACHINE_ID=other)
    first = start_server(arguments, QUIRE_MACHINE_ID="machine-0")
    try:
        first.wait_ready()
        wait_for(lambda: f"ranks exchange data by {transport}" in first.stderr)  # its engine's line
        yield first, second
    finally:
        codes = [process.end() for process in (first, second)]
    assert codes == [0, 0], first.stderr + second.stderr


def rank_of(node: ServeProcess) -> psutil.Process:
    return children(psutil.Process(node.popen.pid))[0]


def check_cores(first: ServeProcess, second: ServeProcess, division: str) -> None:
    """Check that ranks have their share of the cores among those of their machine."""
    places = {"-tp 2 by shared memory": [(1, 2)], "-tp 2 by gloo": [(0, 1)]}
    allowed = frozenset(psutil.Process().cpu_affinity())
    machine = read_nodes(Path("/"), allowed) or [MemoryNode(0, allowed)]
    shares = [
        allowed if size == 1 else cores_of_rank(machine, place, size, 1)
        for place, size in places.get(division, [(0, 2), (1, 2)])
    ]
    ranks = sorted(children(psutil.Process(second.popen.pid)), key=lambda rank: rank.pid)
    assert [frozenset(rank.cpu_affinity()) for rank in ranks] == shares
    told = "is bound to memory node" if shares[0] < allowed else "may use all cores"
    wait_for(lambda: f"[parallel] on this machine, rank 0 {told}" in first.stderr)


def test_tokens_are_those_of_one_process_and_a_killed_rank_is_survived(nodes, alone, request):
    first, second = nodes
    check_cores(first, second, request.node.callspec.params["nodes"])
    assert answers(first.address) == alone
    killed, machine = rank_of(second), psutil.Process(second.popen.pid)
    machine.suspend()  # no other rank comes before the loss was seen
    try:
        killed.kill()
        wait_for(lambda: not is_ready(first.address))
    finally:
        machine.resume()
    wait_for(lambda: is_ready(first.address), 240)
    wait_for(lambda: f"its process has died (process {killed.pid} on " in first.stderr)
    assert answers(first.address) == alone


def test_a_node_without_a_server_waits_and_ends_by_a_signal():
    port = str(free_ports())
    node = start_server(
        [
            *("quire-tiny", "-tp", "2", "--nnodes", "2", "--master-port", port),
            *("--node-rank", "1", "--headless"),
        ]
    )
    try:
        wait_for(lambda: bool(children(psutil.Process(node.popen.pid))))
        child = rank_of(node)
    finally:
        assert node.end() == 0
    assert not child.is_running()


def test_a_wrong_key_is_said_by_the_node_that_has_it():
    port = str(free_ports())
    arguments = ["quire-tiny", "-tp", "2", "--nnodes", "2", "--master-port", port]
    first = start_server([*arguments, "--threads", "1"], QUIRE_CLUSTER_KEY="right")
    node = start_server([*arguments, "--node-rank", "1", "--headless"], QUIRE_CLUSTER_KEY="wrong")
    try:
        node.popen.wait(60)
        assert node.end() == 1
        assert "QUIRE_CLUSTER_KEY must be the same on all machines" in node.stderr
        assert "Traceback" not in node.stderr
    finally:
        first.end()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--headless"], "must come with --node-rank above 0"),
        (["-tp", "2", "-n", "2", "-r", "1"], "must come with --node-rank above 0"),
        (["-tp", "2", "-n", "2", "--distributed-executor-backend", "ray"], "Leave one out"),
    ],
)
def test_settings_that_do_not_fit_together(flags, expected):
    result = CliRunner().invoke(serve, ["quire-tiny", *flags])
    assert result.exit_code != 0 and expected in f"{result.output} {result.exception}"
