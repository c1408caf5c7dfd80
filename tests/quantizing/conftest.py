"""Checkpoints that ``quire quantize`` wrote, made once for all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from quire.cli.main import run
from quire.store.hub import resolve_model

Quantized = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny() -> Path:
    """quire-tiny's folder."""
    return resolve_model("quire-tiny")


@pytest.fixture(scope="session")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Quantized:
    """Return a function that quantizes a folder by options, once for each of them."""
    made: dict[tuple[str, ...], Path] = {}

    def quantize(source: Path, *options: str) -> Path:
        key = (str(source), *options)
        if key not in made:
            out = tmp_path_factory.mktemp("quantized") / "out"
            assert run(["quantize", str(source), str(out), "--threads", "1", *options]) == 0
            made[key] = out
        return made[key]

    return quantize
