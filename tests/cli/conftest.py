"""The command as people run it, and a model whose text is noise."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.random_checkpoint import PRESETS, random_checkpoint

COMMAND = [sys.executable, "-m", "quire.cli.main"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "100"}

Quire = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def quire() -> Quire:
    """Run ``quire`` with arguments and standard input."""

    def run(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            env=ENVIRONMENT,
        )

    return run


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with random weights and a chat template."""
    folder = tmp_path_factory.mktemp("model")
    random_checkpoint(folder, PRESETS["tiny-llama"])
    return folder
