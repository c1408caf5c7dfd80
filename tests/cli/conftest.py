"""The command as people run it, and a model whose text is noise."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands import run_quire
from tools.random_checkpoint import PRESETS, random_checkpoint

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
