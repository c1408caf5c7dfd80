"""Models that tests of the entry points share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.quantizing.inputs import calibration

Config = Callable[[Path], dict[str, Any]]


@pytest.fixture
def stored() -> Config:
    """Return a function that reads ``quantization_config`` of a folder."""

    def read(folder: Path) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((folder / "config.json").read_text())
        config: dict[str, Any] = found["quantization_config"]
        return config

    return read


@pytest.fixture(autouse=True, scope="session")
def little_text() -> Iterator[None]:
    """Make calibration short where nothing says how long it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "SAMPLES", 8)
        patch.setattr(calibration, "SAMPLE_LENGTH", 64)
        yield


@pytest.fixture
def texts() -> list[str]:
    """Texts of calibration, enough of them for small models."""
    return [
        f"Once upon a time there were {n} mice, and each had a name of its own." for n in range(60)
    ]
