"""The growth benchmark, run for real on a tiny model: every axis, and its picture."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest

from benchmarks.growth import growth
from benchmarks.growth.plot import HEADS, draw
from quire.cli.main import run
from tools.random_checkpoint import PRESETS, random_checkpoint


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="pictures need matplotlib")
def test_a_quick_run_draws_every_axis(tmp_path, monkeypatch, capsys):
    random_checkpoint(tmp_path / "m", PRESETS["tiny-llama"])
    model = tmp_path / "m.gguf"
    assert run(["convert", str(tmp_path / "m"), str(model), "--type", "q8_0"]) == 0
    monkeypatch.setattr(growth, "HOME", tmp_path)
    drawn = []
    monkeypatch.setattr(
        growth, "draw", lambda document, path: drawn.append(document) or draw(document, path)
    )
    monkeypatch.setattr(sys, "argv", ["growth", "--quick", str(model)])
    growth.main()
    (document,) = drawn
    for axis in HEADS:
        values = [row[axis] for row in document["results"][axis]]
        assert values == [v for v in growth.AXES[axis] if v <= growth.QUICK[axis]]
        assert all(row["tokens_per_second"] > 0 for row in document["results"][axis])
    assert not any(row["failed"] for row in document["results"]["streams"])
    json.dumps(document)
    (picture,) = tmp_path.glob("*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
