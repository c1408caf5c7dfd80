"""``quire top`` as people run it: on a real server under load, in a terminal, and what ends it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from quire.cli.top import command as top_command
from quire.cli.top import server_reader
from quire.cli.top.alarms import ALARM_SECONDS, SLOW_FIRST_TOKEN, SLOW_TOKENS
from quire.cli.top.figures import figures
from quire.cli.top.reading import Reading
from tests.cli.test_serve_loading import Held
from tests.commands import COMMAND, environment, run_quire
from tests.ports import free_ports
from tests.preforked import Preforked
from tests.servers import start_server
from tools.serve_process import ServeProcess

SMALL = ("--memory", "64MiB", "--threads", "1")
ALTERNATE_SCREEN, MAIN_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"
_SEQUENCE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def own_server(device) -> Iterator[ServeProcess]:
    """One whose log has the lines of this test alone, or that the test kills."""
    port = ["--port", str(free_ports())]  # taken again by one that comes back
    with start_server(["quire-tiny", "--device", device, *SMALL, *port]) as process:
        process.wait_ready()
        yield process


@pytest.fixture
def server(request) -> ServeProcess:
    """The server that the test asks for by another name, or the shared one."""
    own = "own_server" in request.fixturenames
    return request.getfixturevalue("own_server" if own else "tiny_server")


@pytest.fixture
def load(server) -> Iterator[None]:
    """Requests, one after the other, until the end of the test or of the server."""
    over, begun = threading.Event(), threading.Event()
    body = {"prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": True}
    errors: list[httpx2.HTTPError] = []

    def send(client: httpx2.Client) -> None:
        while not over.is_set() and not errors:
            try:
                client.post("/v1/completions", json=body).raise_for_status()
                begun.set()
            except httpx2.HTTPError as error:
                errors.append(error)

    # Made here: a command in this process changes variables that a client reads at its start.
    single = httpx2.Limits(max_keepalive_connections=0)
    clients = [httpx2.Client(base_url=server.address, timeout=60, limits=single) for _ in range(3)]
    threads = [threading.Thread(target=send, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    yield
    over.set()
    for thread in threads:
        thread.join()
    for client in clients:
        client.close()
    assert not errors or server.popen.poll() is not None, errors


@pytest.fixture
def second_reading(monkeypatch) -> None:
    """Take it once the server was at work since the first: it may be held up for an interval."""
    readings: list[Reading] = []

    def is_at_work() -> bool:
        found = figures(readings[0], readings[-1])
        rates = found.generation_rate, found.step_rate, found.read_rate
        return found.itl is not None and all(rate is not None and rate >= 1 for rate in rates)

    def take(url: str) -> Reading:
        end = time.monotonic() + 60
        readings.append(server_reader.take_reading(url))
        while len(readings) > 1 and not is_at_work():
            assert time.monotonic() < end
            readings.append(server_reader.take_reading(url))
        return readings[-1]

    monkeypatch.setattr(top_command, "take_reading", take)


@pytest.fixture(autouse=True)
def _patience(monkeypatch) -> None:
    """Have views that are printed wait for a server as long as the machine needs."""
    monkeypatch.setattr(server_reader, "TIMEOUT_SECONDS", 60.0)


def _take_terminal(descriptor: int) -> None:
    """Make it the terminal of this process, whose keys are signals then."""
    os.setsid()
    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)


class Terminal:
    """``quire top`` in a terminal of 80 x 24."""

    def __init__(self, address: str) -> None:
        self.descriptor, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._other = other
        self.before = termios.tcgetattr(other)
        variables = environment(TERM="xterm")
        for name in ("COLUMNS", "LINES"):
            variables.pop(name, None)
        self.process = subprocess.Popen(
            [*COMMAND, "top", "--base-url", address, "--interval", "0.2", "--window", "2"],
            stdin=other, stdout=other, stderr=subprocess.PIPE, env=variables,
            preexec_fn=lambda: _take_terminal(other),
        )  # fmt: skip
        self.output = b""

    def wait_for(self, pattern: str, seconds: float = 60) -> None:
        """Read until ``pattern`` is in what was drawn since the last call."""
        seen, end = b"", time.monotonic() + seconds
        while not re.search(pattern.encode(), _SEQUENCE.sub(b"", seen)):
            assert time.monotonic() < end, (pattern, seen[-3000:], self.process.poll())
            seen += self._read(0.2)

    def end(self) -> int:
        """Wait for its end and read all that it has drawn; return the exit code."""
        end = time.monotonic() + 60
        while self.process.poll() is None:
            assert time.monotonic() < end
            self._read(0.1)
        while self._read(0.1):
            pass
        return self.process.returncode

    def is_as_before(self) -> bool:
        """Return whether the terminal shows its screen and takes lines again."""
        left = self.output.rfind(MAIN_SCREEN) > self.output.rfind(ALTERNATE_SCREEN) >= 0
        return left and termios.tcgetattr(self._other) == self.before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stderr.close()
        os.close(self._other)
        os.close(self.descriptor)

    def _read(self, seconds: float) -> bytes:
        if not select.select([self.descriptor], [], [], seconds)[0]:
            return b""
        read = os.read(self.descriptor, 65536)
        self.output += read
        return read


@pytest.fixture
def terminal(server) -> Iterator[Terminal]:
    shown = Terminal(server.address)
    yield shown
    shown.close()


def test_a_view_is_printed_where_there_is_no_terminal(server, load, second_reading, quire):
    printed = quire("top", "--base-url", server.address)
    assert printed.returncode == 0, printed.stderr
    lines = {line.split()[0]: line for line in printed.stdout.splitlines() if line}
    assert lines["quire"].split()[3] == "ready" and "\x1b" not in printed.stdout
    assert int(lines["tokens/s"].split()[1].replace(",", "")) > 0
    assert re.search(r"p50 +[\d.]+ ms  p95 +[\d.]+ ms", lines["ITL"])
    assert re.search(r"\d+/[\d,]+ blocks  shared ", lines["KV"])
    assert "execute" in lines["step"] and "GB/s" in lines["machine"]
    assert lines["quire-tiny"].split()[1] == "ready"


def _has_ended(sums: dict[str, Any] | None, count: int) -> bool:
    """Return whether a reading has seen the last of that many sequences, and their times."""
    if sums is None or not sums["ttft"] or not sums["itl"]:
        return False
    return round(sums["finish_rate"] * sums["elapsed"]) == count and not sums["running"]


def test_json_agrees_with_the_counters_of_the_server(own_server, server):
    """All the load comes after the first reading, so that each figure is a hand count."""
    command = [*COMMAND, "top", "--base-url", server.address, "--json", "--interval", "0.2"]
    command += ["--window", str(ALARM_SECONDS)]
    with Preforked(command, stdout=subprocess.PIPE, text=True, env=environment()) as top:
        end = time.monotonic() + 60
        while "path=/models" not in server.stderr and "/models" not in server.stderr:
            assert time.monotonic() < end
            time.sleep(0.05)
        body = {"prompt": [5, 6, 7], "max_tokens": 9, "ignore_eos": True, "n": 2}
        assert httpx2.post(f"{server.address}/v1/completions", json=body, timeout=60).is_success
        found = next(line for line in map(json.loads, top.stdout) if _has_ended(line["all"], 2))
        top.terminate()
    sums = found["all"]
    assert found["state"] == "ready" and found["problem"] is None
    slow = {
        "slow first tokens": sums["ttft"]["p99"] > SLOW_FIRST_TOKEN,
        "slow tokens": sums["itl"]["p99"] > SLOW_TOKENS,
    }
    told = [alarm["text"].partition(":")[0] for alarm in found["alarms"]]
    assert told == [name for name, is_slow in slow.items() if is_slow]
    assert round(sums["generation_rate"] * sums["elapsed"]) == 18
    assert round(sums["prompt_rate"] * sums["elapsed"]) == 3
    assert round(sums["finish_rate"] * sums["elapsed"]) == 2
    assert (sums["running"], sums["waiting"], sums["kv_used"]) == (0, 0, 0)
    (model,) = found["models"]
    assert (model["name"], model["state"]) == ("quire-tiny", "ready")
    assert model["figures"]["generation_rate"] == sums["generation_rate"]


@pytest.mark.parametrize(
    "end, code", [(b"q", 0), (b"\x03", 0), (signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
def test_the_terminal_is_as_before_after_any_end(server, terminal, end, code):
    terminal.wait_for("q ends")
    if isinstance(end, bytes):
        fcntl.ioctl(terminal.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 60, 0, 0))
        terminal.wait_for("quire-tiny")
    if isinstance(end, bytes):
        os.write(terminal.descriptor, b"x\x1a\x1c" + end)  # Ctrl-Z and Ctrl-\ do nothing
    else:
        terminal.process.send_signal(end)
    assert terminal.end() == code
    assert terminal.is_as_before() and terminal.process.stderr.read() == b""


def test_lines_of_json_end_by_an_interrupt(server):
    command = [*COMMAND, "top", "--base-url", server.address, "--json", "--interval", "0.2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Preforked(command, text=True, env=environment(), **pipes) as top:
        assert json.loads(top.stdout.readline())["state"] == "ready"
        top.send_signal(signal.SIGINT)
        assert top.wait(60) == 130
        assert top.stderr.read().strip() == "quire: interrupted"


def test_a_server_that_is_killed_and_comes_back_is_shown(
    own_server, server, load, terminal, device
):
    terminal.wait_for(r"[1-9]\d* generated")
    port = server.address.rpartition(":")[2]
    server.end(signal.SIGKILL)
    terminal.wait_for("no answer")
    with start_server(["quire-tiny", "--device", device, *SMALL, "--port", port]) as again:
        again.wait_ready()
        terminal.wait_for(r"quire-tiny +ready")
        os.write(terminal.descriptor, b"q")
        assert terminal.end() == 0
    assert terminal.is_as_before() and terminal.process.stderr.read() == b""


def test_an_engine_that_is_killed_is_an_alarm(own_server, server, terminal):
    terminal.wait_for("q ends")
    server.engine().kill()
    terminal.wait_for("engine started again once")
    os.write(terminal.descriptor, b"q")
    assert terminal.end() == 0


def test_models_that_come_and_go_are_lines(device, model, quire):
    flags = ["--memory", "512MiB", "--threads", "1", "--load-on-demand", "--load-wait", "60"]
    arguments = ["quire-tiny", str(model), "--device", device, *flags]
    with start_server(arguments) as server:
        server.wait_ready()

        def view() -> dict[str, list[str]]:
            printed = quire("top", "--base-url", server.address, "--once", "--interval", "0.1")
            assert printed.returncode == 0, printed.stderr
            return {line.split()[0]: line.split() for line in printed.stdout.splitlines() if line}

        assert view()["quire-tiny"][1:3] == ["absent", "-"]
        body = {"model": "quire-tiny", "prompt": "abc", "max_tokens": 2}
        assert httpx2.post(f"{server.address}/v1/completions", json=body, timeout=90).is_success
        seen = view()
        assert seen["quire-tiny"][1:3] == ["ready", "0"] and seen["KV"]
        assert seen[model.name][1:3] == ["absent", "-"]


def test_a_server_that_loads_is_shown(device, model, quire):
    with Held([str(model), "--device", device, *SMALL]) as held:
        printed = quire("top", "--base-url", held.url, "--once", "--interval", "0.1")
    assert printed.returncode == 0, printed.stderr
    assert "not ready" in printed.stdout.splitlines()[0]
    assert re.search(rf"^{re.escape(model.name)}\S* +loading", printed.stdout, re.MULTILINE)
    assert "ALARM   not ready: HTTP 503" in printed.stdout


def test_no_server_and_no_quire_server_are_errors(server, quire):
    none = quire("top", "--base-url", "http://127.0.0.1:9", "--once")
    assert none.returncode == 1 and "No server is running at 127.0.0.1:9" in none.stderr
    other = quire("top", "--base-url", f"{server.address}/playground", "--once")
    assert other.returncode == 1 and "refused: HTTP 404" in other.stderr
    assert "Traceback" not in none.stderr + other.stderr


def test_a_key_is_sent_and_its_lack_is_an_error(device, quire, monkeypatch):
    arguments = ["quire-tiny", "--device", device, *SMALL, "--api-key", "secret"]
    with start_server(arguments) as server:
        server.wait_ready()
        command = ["top", "--base-url", server.address, "--once", "--json"]
        for key, code in (("secret", 0), ("wrong", 1)):
            found = run_quire(*command, QUIRE_API_KEY=key)
            assert found.returncode == code, found.stderr
            assert "Traceback" not in found.stderr
    assert "401" in found.stderr
