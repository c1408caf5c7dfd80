"""The command as people run it, and a model whose text is noise."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands import run_quire
from tools.random_checkpoint import PRESETS, random_checkpoint

#: Of processes that are interrupted while they write: their output fills the pipe (of 4 KiB), and
#: they are still at work whenever a test gets to it.
LONG = {"bufsize": 0, "pipesize": 4096}

Quire = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def quire() -> Quire:
    """Run ``quire`` with arguments and standard input."""
    return run_quire


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with random weights and a chat template."""
    folder = tmp_path_factory.mktemp("model")
    random_checkpoint(folder, PRESETS["tiny-llama"])
    return folder


@pytest.fixture(scope="session")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a context of more text than a pipe of :data:`LONG` takes."""
    folder = tmp_path_factory.mktemp("long-model")
    random_checkpoint(folder, PRESETS["tiny-llama"] | {"max_position_embeddings": 16_384})
    return folder
