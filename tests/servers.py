"""Servers that many tests share: real ``quire serve`` processes, each lent to one test at a time.

A test has a server for as long as it runs: a lease. At its end nothing may be left: no request runs
or waits, no block of the KV cache is held, the pool is whole, the engines are the processes that
they were, and the models and adapters are those of before. What a test leaves is that test's
failure. A server is started for the first test that asks for it, and again after a test that ended
it or killed an engine: such a test judges what comes of that itself.

Tests of one worker share them (:data:`~tests.workers.SERVERS`). A server with
flags of its own belongs to the test that wants them, or to its module.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from benchmarks.robustness import server_state
from quire.checkpoints.embedded import LISTED
from tests.preforked import Preforked
from tests.store.hub_stand_in import HubStandIn, serving
from tools.random_checkpoint import PRESETS, random_checkpoint
from tools.serve_process import ServeProcess

#: Starts ``quire serve`` a second sooner, where nothing depends on a fresh interpreter.
start_server = partial(ServeProcess, spawn=Preforked)
#: Of the servers on the checkpoint of :func:`crowded_arguments`: more requests than run at once.
CROWDED = (
    *("--memory", "48MiB", "--threads", "1", "--max-num-seqs", "4"),
    *("--ready-timeout", "60"),  # where a test does not ask for less, no stall makes it unready
)


class SharedServer:
    """A server that is started when it is first lent and when the last test has ended it.

    Args:
        start: Starts it.
        may_log_errors: Tests have it fail on purpose, and it logs where.
    """

    def __init__(self, start: Callable[[], ServeProcess], *, may_log_errors: bool = False) -> None:
        self._start = start
        self._may_log_errors = may_log_errors
        self._server: ServeProcess | None = None

    @contextmanager
    def lease(self, tidy: Callable[[ServeProcess], Any] | None = None) -> Iterator[ServeProcess]:
        """Lend it, ready, for a block; what the block leaves is an error unless it killed some.

        Args:
            tidy: Removes what the block may leave, while the server is there.
        """
        server = self._server = self._server or self._start()
        server.wait_ready()
        engines, models, line = server.engines(), _models(server), len(server.lines)
        try:
            yield server
            if tidy is not None and server.popen.poll() is None:
                tidy(server)
            if not self._is_dirty(engines):
                assert_nothing_left(server, models)
                text = "".join(server.lines[line:])
                assert self._may_log_errors or "Traceback" not in text, text
        except BaseException:
            self.discard()
            raise
        if self._is_dirty(engines):
            self.discard()

    def _is_dirty(self, engines: list[psutil.Process]) -> bool:
        """Tell whether the server or an engine of it is not the process any more that it was."""
        assert self._server is not None
        if self._server.popen.poll() is not None:
            return True
        return self._server.engines() != engines or not all(map(psutil.Process.is_running, engines))

    def discard(self) -> None:
        """Kill it; the next lease starts another one."""
        if self._server is not None:
            self._server.popen.kill()
            self._server.end()
        self._server = None

    def end(self) -> None:
        """End it as a supervisor does."""
        if self._server is not None:
            code = self._server.end()
            assert code == 0, self._server.stderr
            self._server = None


def _models(server: ServeProcess) -> list[tuple[str, str | None]]:
    """Return what a client can ask for: models and adapters."""
    with suppress(KeyError):
        cards = httpx2.get(f"{server.address}/v1/models").json()["data"]
        return sorted((card["id"], card.get("parent")) for card in cards)
    raise AssertionError("the server must list its models")


def assert_nothing_left(server: ServeProcess, models: list[tuple[str, str | None]]) -> None:
    """No request, no block, the pool whole; healthy, and with the same models as before."""
    with httpx2.Client(base_url=server.address, timeout=60) as client:
        server_state.wait_until_idle(client)
        assert server_state.cache_state(client) == (0, "ok")
        assert client.get("/health/ready").status_code == 200
    assert _models(server) == models


def _shared(start: Callable[[], ServeProcess], **settings: Any) -> Iterator[SharedServer]:
    server = SharedServer(start, **settings)
    yield server
    server.end()


@pytest.fixture(scope="session")
def crowded_arguments(tmp_path_factory: pytest.TempPathFactory, device: str) -> list[str]:
    """A tiny checkpoint with one token per byte, and settings that fit it."""
    folder = tmp_path_factory.mktemp("tiny") / "tiny-llama"
    random_checkpoint(folder, PRESETS["tiny-llama"])
    return [str(folder), "--device", device, *CROWDED]


@pytest.fixture(scope="session")
def _tiny(device: str) -> Iterator[SharedServer]:
    flags = ["--device", device, "--memory", "100MiB", "--threads", "1"]
    yield from _shared(lambda: start_server(["quire-tiny", *flags]))


@pytest.fixture(scope="session")
def _crowded(crowded_arguments: list[str]) -> Iterator[SharedServer]:
    yield from _shared(lambda: start_server(crowded_arguments))


@pytest.fixture(scope="session")
def _faulty(
    crowded_arguments: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SharedServer, Faults]]:
    faults = Faults(tmp_path_factory.mktemp("armed"))
    server = SharedServer(
        lambda: start_server(crowded_arguments, **faults.environment), may_log_errors=True
    )
    yield server, faults
    server.end()


@pytest.fixture
def tiny_server(_tiny: SharedServer) -> Iterator[ServeProcess]:
    """quire-tiny."""
    with _tiny.lease() as server:
        yield server


@pytest.fixture
def crowded_server(_crowded: SharedServer) -> Iterator[ServeProcess]:
    """A random model on which four requests run at once and others wait."""
    with _crowded.lease() as server:
        yield server


@pytest.fixture
def faulty_server(_faulty: tuple[SharedServer, Faults]) -> Iterator[tuple[ServeProcess, Faults]]:
    """The same with faults that can be armed; at the end of the test none is."""
    shared, faults = _faulty
    with shared.lease() as server:
        yield server, faults
        assert faults.armed() == []


class Faults:
    """Arms faults in the processes of a server; see ``robustness/faulty/sitecustomize.py``.

    Attributes:
        environment: Of the server.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        here = Path(__file__).parent
        self.environment = {
            "FAULTS": str(folder),
            "PYTHONPATH": f"{here / 'robustness' / 'faulty'}:{here.parent}",
        }

    def arm(self, name: str) -> None:
        """Have it strike at the next chance."""
        (self._folder / name).touch()

    def has_struck(self, name: str) -> bool:
        """Return whether it did."""
        return not (self._folder / name).exists()

    def armed(self) -> list[str]:
        """Return those that have not struck."""
        return [path.name for path in self._folder.iterdir()]


@dataclass
class Pulling:
    """A server whose hub is a stand-in, and whose store has no model but those of the package.

    Attributes:
        hub: Has ``org/tiny:Q8_0``.
        folder: Of the caches.
    """

    hub: HubStandIn
    folder: Path
    files: dict[str, bytes] = field(default_factory=dict)

    def start(self) -> ServeProcess:
        """Start one on an empty store."""
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        flags = ["--memory", "2GiB", "--device", "cpu", "--threads", "1"]
        return start_server(flags, **self.hub.settings(self.folder))

    def renew_hub(self) -> None:
        """Have it be as at the start."""
        self.hub.repositories = {"org/tiny": dict(self.files)}
        self.hub.requests.clear()
        self.hub.pause, self.hub.slow_after = 0.0, None

    def remove_models(self, server: ServeProcess) -> None:
        """Remove what a test pulled or made, by the API; no part of a file may stay."""
        with httpx2.Client(base_url=server.address, timeout=60) as client:
            for model in client.get("/api/tags").json()["models"]:
                name = model["name"].removesuffix(":latest")
                if name not in LISTED:
                    answer = client.request("DELETE", "/api/delete", json={"model": name})
                    assert answer.status_code == 200, answer.text
            end = time.monotonic() + 60
            while len(server.engines()) > 1:
                assert time.monotonic() < end, client.get("/api/ps").text
                time.sleep(0.02)
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        assert not [path for path in files if path.suffix in (".part", ".incomplete")], files
        for path in (self.folder / "quire" / "blobs").glob("*"):
            path.unlink()  # it was uploaded, and no model has it: it would stay for a day


@pytest.fixture(scope="session")
def _pulling(
    gguf: bytes, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SharedServer, Pulling]]:
    with serving(HubStandIn({})) as hub:
        pulling = Pulling(hub, tmp_path_factory.mktemp("pulled"), {"tiny-Q8_0.gguf": gguf})
        server = SharedServer(pulling.start)
        yield server, pulling
        server.end()


@pytest.fixture
def pulling_server(
    _pulling: tuple[SharedServer, Pulling],
) -> Iterator[tuple[ServeProcess, Pulling]]:
    """A server, its hub and its store; the models that a test pulls or makes go at its end."""
    shared, pulling = _pulling
    pulling.renew_hub()
    with shared.lease(pulling.remove_models) as server:
        yield server, pulling
