"""A tiny random checkpoint and engines on it, loaded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quire import LLM
from quire.core.errors import NoKernelError
from quire.kernels.backend import create_backend
from tools.random_checkpoint import PRESETS, random_checkpoint

#: Enough for every test here; the machine's whole memory is nobody's.
SMALL = {"memory": 64 * 2**20, "max_num_seqs": 8, "threads": 1}


@pytest.fixture(scope="session")
def device() -> str:
    """The native backend where it is built, else the reference."""
    try:
        create_backend("cpu", threads=1)
    except (NoKernelError, ImportError):
        torch = pytest.importorskip("torch")
        torch.set_num_threads(1)
        return "reference"
    return "cpu"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("tiny") / "tiny-llama"
    random_checkpoint(path, PRESETS["tiny-llama"])
    return path


@pytest.fixture
def create_llm(folder: Path, device: str) -> Iterator[Callable[..., LLM]]:
    """Return a function that loads the checkpoint with further settings."""
    made: list[LLM] = []

    def create(**settings: Any) -> LLM:
        made.append(LLM(str(folder), **{"device": device, **SMALL, **settings}))
        return made[-1]

    yield create
    for llm in made:
        llm.shutdown()


@pytest.fixture(scope="module")
def llm(folder: Path, device: str) -> Iterator[LLM]:
    with LLM(str(folder), device=device, **SMALL) as loaded:  # type: ignore[arg-type]
        yield loaded
