"""A tiny random checkpoint and engines on it, loaded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quire import LLM
from tools.random_checkpoint import PRESETS, random_checkpoint


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("tiny") / "tiny-llama"
    random_checkpoint(path, PRESETS["tiny-llama"])
    return path


@pytest.fixture
def create_llm(folder: Path, device: str, small: dict[str, Any]) -> Iterator[Callable[..., LLM]]:
    """Return a function that loads the checkpoint with further settings."""
    made: list[LLM] = []

    def create(**settings: Any) -> LLM:
        made.append(LLM(str(folder), **{"device": device, **small, **settings}))
        return made[-1]

    yield create
    for llm in made:
        llm.shutdown()


@pytest.fixture(scope="module")
def llm(folder: Path, device: str, small: dict[str, Any]) -> Iterator[LLM]:
    with LLM(str(folder), device=device, **small) as loaded:
        yield loaded
