"""A small target of random weights for draft heads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from quire.kernels.registry import create_backend
from quire.models.decoder import Decoder
from quire.models.loader import load_model
from tools.random_checkpoint import PRESETS, random_checkpoint

if TYPE_CHECKING:
    from quire.training.target import HeadVocabulary


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("target")
    random_checkpoint(path, PRESETS["tiny-llama"])
    return path


@pytest.fixture(scope="module")
def target(folder: Path, device: str) -> Decoder:
    return load_model(folder, create_backend(device, threads=1))


@pytest.fixture(scope="module")
def vocabulary(folder: Path) -> HeadVocabulary:
    """Return what heads share with the target; needs torch."""
    from tests.recurrent_heads import read_vocabulary

    return read_vocabulary(folder)
