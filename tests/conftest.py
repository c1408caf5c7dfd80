"""Fixtures that more than one package's tests share."""

from __future__ import annotations

import gc
import os
import signal
import sys

# Programs that tests start compile all of Quire each time, half of their start, where an image of
# a container has this set.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Before numpy is there. Two threads of OpenBLAS wait for each other at each small product, for long
# where other workers have the cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Those of torch sleep instead of turning on a core that another worker wants.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# A shell's background job ignores it and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import functools
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from quire.core.errors import NoKernelError
from quire.kernels.registry import create_backend
from quire.system.collector import collect_seldom
from tests.commands import run_quire
from tools.random_checkpoint import PRESETS, random_checkpoint

#: Its Python is a link to the machine's; the folder makes it another one, so it is not resolved.
LLAMA_ENVIRONMENT = Path(__file__).absolute().parents[1] / ".venv-llama"

# Until all tests are collected: the collector would look at them again and again, half of the time.
gc.disable()
sys.dont_write_bytecode = False  # of tests' modules as well
# Each `httpx2.get` would read all certificates of the machine, a tenth of what the suite took.
httpx2._transports.default.create_ssl_context = functools.cache(httpx2.create_ssl_context)
# Clients that say nothing of it wait 5 s for an answer: a server on a loaded machine takes longer.
for _what in ("connect", "read", "write", "pool"):
    setattr(httpx2._config.DEFAULT_TIMEOUT_CONFIG, _what, 60.0)
pytest_plugins = [
    "tests.required",
    "tests.durations",
    "tests.servers",
    "tests.sizes",
    "tests.workers",
    "tests.circles",
]


@pytest.fixture(scope="session")
def device() -> str:
    """Name the native backend where it is built, else the reference."""
    try:
        create_backend("cpu", threads=1)
    except (NoKernelError, ImportError):
        torch = pytest.importorskip("torch")
        torch.set_num_threads(1)
        return "reference"
    return "cpu"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that writes a preset, with changed fields, once."""
    root = tmp_path_factory.mktemp("checkpoints")

    def write(preset: str = "tiny-llama", **fields: Any) -> Path:
        folder: Path = root / "-".join([preset, *(f"{k}={v}" for k, v in fields.items())])
        if not folder.exists():
            random_checkpoint(folder, PRESETS[preset] | fields)
        return folder

    return write


@pytest.fixture(scope="session")
def small() -> dict[str, Any]:
    """Settings with which an engine takes little of the machine that runs the tests."""
    return {"memory": 64 * 2**20, "max_num_seqs": 8, "threads": 1}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    """Return a running store of Redis' protocol, with its ``url``, ``stop`` and ``start``."""
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server: scripts/install_test_programs installs it")
    from tests.redis_store import Store

    made = Store(tmp_path)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def peer_python() -> str:
    """Return a Python that has llama-cpp-python."""
    python = os.environ.get("QUIRE_TEST_LLAMA_PYTHON", LLAMA_ENVIRONMENT / "bin/python")
    if not Path(python).exists():
        pytest.skip("no llama_cpp: scripts/install_test_programs builds it")
    return str(python)


@pytest.fixture(scope="session")
def llama_source() -> Path:
    """Return the folder of llama.cpp's sources: its converter, and templates of many models."""
    given = os.environ.get("QUIRE_TEST_LLAMA_SOURCE")
    found = [Path(given)] if given else [*LLAMA_ENVIRONMENT.glob("source/*/vendor/llama.cpp")]
    if not found:
        pytest.skip("no sources of llama.cpp: scripts/install_test_programs fetches them")
    return found[0]


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """quire-tiny as a GGUF file's bytes."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    assert run_quire("convert", "quire-tiny", str(path)).returncode == 0
    return path.read_bytes()


class Records(logging.Handler):
    """Keeps what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def quire_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[logging.LogRecord]]:
    """Collect what the logger ``quire`` gets, whether it passes records on or not."""
    monkeypatch.setenv("QUIRE_LOG_LEVEL", "info")  # else LLM() logs one line
    handler = Records()
    logging.getLogger("quire").addHandler(handler)
    yield handler.records
    logging.getLogger("quire").removeHandler(handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say how long repeated faults go on; the suite has a short form."""
    parser.addoption("--fault-times", type=int, default=2)


@pytest.fixture(scope="session", autouse=True)
def _collected_seldom() -> None:
    """Look for cycles again, as seldom as a server does."""
    gc.enable()
    collect_seldom()


@pytest.fixture(scope="session", autouse=True)
def _passed_on_by_torch() -> None:
    """Have torch's loggers pass records on: pytest hangs its handlers on each that does not, in

    each of three phases of each test, which was a third of what an empty test takes.
    """
    for name, logger in logging.root.manager.loggerDict.items():
        if name.partition(".")[0] == "torch" and isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.fixture(scope="session", autouse=True)
def _torch_has_one_thread() -> None:
    """More would wait for each other where other workers have the cores."""
    if "torch" in sys.modules:  # imported before workers are forked
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _forked_children() -> None:
    """Fork engines, ranks and sandboxes of this process; with ``--all`` they start afresh."""
    from tests.sizes import sized

    if sys.platform == "linux" and sized(True, False):
        from tests.preforked import fork_children

        fork_children()


@pytest.fixture(scope="session", autouse=True)
def _measured_briefly() -> Iterator[None]:
    """Have engines that speculate measure steps of three sizes at their start, each three times.

    Usually of thirteen, for a fifth of a second: hundreds are started here, with lengths set.
    """
    from quire.runner import row_seconds
    from tests.sizes import sized

    with pytest.MonkeyPatch.context() as patch:
        rows = row_seconds.MEASURED_ROWS
        patch.setattr(row_seconds, "MEASURED_ROWS", sized((1, 4, 16), rows))
        patch.setattr(row_seconds, "MEASURED_SECONDS", sized(0.0, row_seconds.MEASURED_SECONDS))
        yield


@pytest.fixture(autouse=True)
def _cores() -> Iterator[None]:
    """No test leaves this thread on fewer cores than it had: later ones would run there."""
    if not hasattr(os, "sched_getaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    yield
    after = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before)
    assert after == before


@pytest.fixture(autouse=True)
def _log() -> Iterator[None]:
    """No test leaves the log as a command sets it up: later ones would not see its lines."""
    logger = logging.getLogger("quire")
    before = logger.propagate, logger.level, logger.disabled, logger.handlers[:]
    yield
    logger.propagate, logger.level, logger.disabled, logger.handlers[:] = before
