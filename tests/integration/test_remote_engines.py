"""Engines of one model on two machines, which are processes of this one: tokens, and what dies."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count, islice
from pathlib import Path

import httpx2
import psutil
import pytest
from click.testing import CliRunner

from quire.cli.serve import serve
from quire.cli.serve_plan import plan_serving
from quire.core.errors import ConfigError
from quire.server.server_options import ServerOptions
from quire.settings.config import EngineConfig
from tests.ports import free_ports
from tests.preforked import children
from tests.robustness.conftest import SHORT, Crowd, ask, is_ready, wait_for
from tests.served_engines import answers, total, wait_until_used
from tests.servers import start_server
from tools.random_checkpoint import PRESETS, random_checkpoint
from tools.serve_process import ServeProcess

RAY = ["--distributed-executor-backend", "ray"]


def arguments(port: int, *flags: str) -> list[str]:
    shared = ["-dp", "2", "--nnodes", "2", "--master-port", str(port), "--max-num-seqs", "8"]
    return ["quire-tiny", *shared, "--threads", "1", "--memory", "200MiB", *flags]


def headless(port: int, *flags: str, **environment: str) -> ServeProcess:
    own = [*arguments(port), "--node-rank", "1", "--headless", *flags]
    return start_server(own[1:] if "--model" in flags else own, **environment)


@pytest.fixture
def alone(tiny_server: ServeProcess) -> list[str]:
    """What one process answers."""
    return answers(tiny_server.address)


@pytest.fixture
def started() -> Iterator[list[ServeProcess]]:
    """Processes that are killed at the end of the test if they still run."""
    running: list[ServeProcess] = []
    yield running
    for process in running:
        process.__exit__()


@pytest.mark.parametrize("is_machine", [False, True], ids=["its process", "its machine"])
def test_an_engine_of_another_machine_is_killed(is_machine, alone, started):
    """The others serve on, each request ends once, and the engine is used again."""
    port = free_ports()
    server = start_server(arguments(port))
    node = headless(port)
    started += [server, node]
    url = server.wait_ready()
    assert answers(url) == alone
    wait_until_used(url)
    whole = ask(url, SHORT)
    killed = node.engine()
    crowd = Crowd(url, [SHORT] * 12)
    if is_machine:
        node.popen.kill()
        node.end()
        node = headless(port)
        started.append(node)
    else:
        killed.kill()
    lost = [ending for ending in crowd.endings() if ending != whole]
    for ending in lost:
        assert ending.error is not None and ending.error["code"] == 503, ending
    assert is_ready(url), "the other engine serves"
    wait_until_used(url)
    assert answers(url) == alone
    assert not psutil.pid_exists(killed.pid) or killed.status() == psutil.STATUS_ZOMBIE
    children = [*server.engines(), *node.engines()]
    assert [server.end(), node.end()] == [0, 0], server.stderr + node.stderr
    assert not [child for child in children if child.is_running()]
    assert "is lost); see the log" in server.stderr
    assert "Traceback" not in server.stderr + node.stderr


def test_engines_of_several_ranks(alone, started):
    """Each machine has all ranks of its engines; one of them is killed."""
    port, ranks = free_ports(), ["-tp", "2"]
    server, node = start_server(arguments(port, *ranks)), headless(port, *ranks)
    started += [server, node]
    url = server.wait_ready()
    assert answers(url) == alone
    wait_until_used(url)
    assert total(url, "quire:rank_memory_bytes", engine="1", rank="1", pool="weights")
    (engine,) = node.engines()
    (rank,) = children(engine)
    rank.kill()
    wait_for(lambda: not engine.is_running())
    assert is_ready(url), "the other engine serves"
    wait_until_used(url)
    assert answers(url) == alone
    assert [server.end(), node.end()] == [0, 0], server.stderr + node.stderr
    assert "[rank 1] " in server.stderr


def test_a_machine_serves_the_next_server_when_its_own_is_killed(alone, started):
    port = free_ports()
    node = headless(port)
    started.append(node)
    wait_for(lambda: bool(node.engines()))  # it waits: the server begins later
    for _ in range(2):
        server = start_server(arguments(port))
        started.append(server)
        assert answers(server.wait_ready()) == alone
        wait_until_used(server.address)
        engine = node.engine()
        server.end(signal.SIGKILL)
        wait_for(lambda gone=engine: not gone.is_running())
    assert node.end() == 0
    assert "its server is gone" in node.stderr
    assert "Traceback" not in node.stderr


def test_a_stopped_engine_is_found_out_and_its_machine_replaces_it(started):
    port = free_ports()
    server = start_server(arguments(port, "--watchdog-timeout", "5"))  # the other one's stalls
    node = headless(port)
    started += [server, node]
    url = server.wait_ready()
    stopped = node.engine()
    stopped.suspend()
    endings = Crowd(url, [SHORT] * 8).endings()
    assert any(ending.reason == "length" for ending in endings), "the other engine answers"
    wait_for(lambda: not stopped.is_running())
    wait_until_used(url)
    assert [server.end(), node.end()] == [0, 0]
    assert "no step has ended for 5 s" in server.stderr


@pytest.fixture
def other_model(tmp_path: Path) -> str:
    """Another one of the same kind."""
    random_checkpoint(tmp_path / "other", PRESETS["tiny-llama"])
    return str(tmp_path / "other")


@pytest.fixture
def strange(other_model: str) -> dict[str, tuple[list[str], str]]:
    """Flags and key of machines that do not belong, by what they are told."""
    model = ["--model", other_model]
    return {
        "QUIRE_CLUSTER_KEY must be the same on all machines": ([], "wrong"),
        "--block-size must be the same on all machines; got 32": (["--block-size", "32"], "right"),
        "the model must be the same on all machines": (model, "right"),
        "engines must be 1 to 1": (["-dp", "4"], "right"),
        "only engines may connect here; got a rank": (["-dp", "1", "-tp", "2"], "right"),
    }


def test_who_does_not_belong_says_why_and_does_not_hold_up_others(strange, alone, started):
    port = free_ports()
    server = start_server(arguments(port), QUIRE_CLUSTER_KEY="right")
    started.append(server)
    for expected, (flags, key) in strange.items():
        node = headless(port, *flags, QUIRE_CLUSTER_KEY=key)
        started.append(node)
        node.popen.wait(60)
        assert node.end() == 1
        assert expected in node.stderr and "Traceback" not in node.stderr, node.stderr
    with socket.create_connection(("127.0.0.1", port)):  # a stranger that says nothing
        good = headless(port, QUIRE_CLUSTER_KEY="right")
        started.append(good)
        assert answers(server.wait_ready()) == alone
    assert [server.end(), good.end()] == [0, 0]
    assert server.stderr.count("was refused") >= len(strange)


@contextmanager
def company(address: str) -> Iterator[None]:
    """Have three answers be made in a block, however long that takes."""
    body = {"prompt": "Tell", "max_tokens": 1900, "ignore_eos": True, "stream": True}
    kept = []  # a stream is closed with the generator of its lines
    with ExitStack() as stack:
        for _ in range(3):
            asked = httpx2.stream("POST", f"{address}/v1/completions", json=body, timeout=60)
            kept.append(stack.enter_context(asked).iter_lines())
            assert next(kept[-1])
        yield


def test_a_prompt_computed_on_another_machine_is_found_on_this_one(tiny_server, started):
    port = free_ports(2)  # the second for blocks
    text = "A list of customers, with their towns. " * 12
    roles = ["--disaggregate", "1p1d", "--disaggregate-tokens", "64"]
    roles += ["--disaggregate-transport", "tcp"]
    server, node = start_server(arguments(port, *roles)), headless(port)
    started += [server, node]
    address = server.wait_ready()
    body = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    one = tiny_server.address
    numbers = count()

    def is_sent() -> bool:
        """What the machine's stalls hold up for a second is computed here, others for a while."""
        bodies = [{**body, "prompt": f"{number} {text}"} for number in islice(numbers, 4)]
        with company(address):
            found = [ask(address, asked).text for asked in bodies]
            is_sent = total(address, "quire:kv_offload_load_bytes_total", tier="transfer") > 0
        assert found == [ask(one, asked).text for asked in bodies]
        return is_sent

    wait_for(is_sent, 240)
    assert total(address, "quire:prefill_requests_total", place="apart")
    assert [server.end(), node.end()] == [0, 0], server.stderr + node.stderr


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["-dp", "3", "-n", "2"], "--nnodes must divide the 3 engines; got 2"),
        (["--disaggregate", "1p1d", "-n", "2"], "with --disaggregate all of them"),
        (["-dp", "2", "-n", "2", "-r", "1"], "must come with --node-rank above 0"),
    ],
)
def test_settings_that_do_not_fit_together(flags, expected):
    result = CliRunner().invoke(serve, ["quire-tiny", *flags])
    assert result.exit_code != 0 and expected in f"{result.output} {result.exception}"


@pytest.mark.parametrize(
    ("roles", "expected"),
    [("1p3d", "of which those for outputs fit machine 0"), ("1p1d", "--data-parallel-size 2, all")],
)
def test_roles_that_do_not_fit_machines(roles, expected):
    config = EngineConfig.from_keywords(model="quire-tiny", data_parallel_size=4, nnodes=2)
    with pytest.raises(ConfigError, match=expected):
        plan_serving([config], ServerOptions(disaggregate=roles), named=True, has_keys=False)


@pytest.mark.parametrize("flags", [["--nnodes", "2"], RAY])
def test_several_models_have_their_engines_on_one_machine(flags):
    with start_server(["quire-tiny", "quire-tiny-draft", "-dp", "2", *flags]) as process:
        assert process.popen.wait(60) == 1
        process.end()
        assert "with --data-parallel-size must come with one MODEL" in process.stderr


def test_a_dry_run_tells_which_engine_is_where():
    result = CliRunner().invoke(serve, ["quire-tiny", "-dp", "4", "-n", "2", "--dry-run"])
    assert "machine 0, this one: engines 0, 1, with the server" in result.output
    assert "machine 1: engines 2, 3, which go to 127.0.0.1" in result.output
    result = CliRunner().invoke(serve, ["quire-tiny", "-dp", "4", *RAY, "--dry-run"])
    assert "engines 1 to 3: in a Ray cluster" in result.output
