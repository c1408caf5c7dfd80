"""What methods cost on quire-tiny's own text, by the commands that users have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from quire.cli.main import run

Measure = Callable[..., float]


@pytest.fixture(scope="module")
def perplexity(
    tiny: Path, quantized: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Measure:
    """Return a function that quantizes quire-tiny and returns its perplexity over the source's."""
    report = tmp_path_factory.mktemp("report") / "report.json"

    def measure(*options: str) -> float:
        out = quantized(tiny, *options)
        short = ("--max-tokens", "3000", "--threads", "1")
        text = ("--perplexity", str(tiny / "eval" / "heldout.txt"), "--output", str(report))
        assert run(["eval", str(out), "--reference", str(tiny), *text, *short]) == 0
        return float(json.loads(report.read_text())["comparison"]["ratio"]["value"])

    return measure


def test_scales_rounded_to_bytes_change_next_to_nothing(perplexity: Measure) -> None:
    double = perplexity("--method", "nf4")
    plain = perplexity("--method", "nf4", "--plain-scales")
    assert double != plain and abs(double / plain - 1) < 0.001
    assert double < 1.02
