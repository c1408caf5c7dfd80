"""What methods cost on quire-tiny's own text, by the commands that users have."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from quire.cli.main import run
from tests.quantizing.stored_values import SAMPLES, quantized_names
from tests.sizes import sized

Measure = Callable[..., float]
#: Tables take long to be searched: in a third of the layers what they cost is seen, too. Lattice
#: codes take longest: one layer of six shows it.
SOME = sized(("--skip", "model.layers.[1245].*"), ())
ONE = sized(("--skip", "model.layers.[12345].*"), ())


@pytest.fixture(scope="module")
def perplexity(
    tiny: Path, quantized: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Measure:
    """Return a function that quantizes quire-tiny and returns its perplexity over the source's."""
    report = tmp_path_factory.mktemp("report") / "report.json"

    @cache
    def absolute(folder: Path) -> float:
        short = ("--max-tokens", sized("1500", "3000"), "--threads", "1")
        text = ("--perplexity", str(tiny / "eval" / "heldout.txt"), "--output", str(report))
        assert run(["eval", str(folder), *text, *short]) == 0
        return float(json.loads(report.read_text())["text"]["perplexity"]["value"])

    return lambda *options: absolute(quantized(tiny, *options)) / absolute(tiny)


@pytest.mark.parametrize("method", ["llm-int8", "smoothquant"])
def test_bytes_cost_next_to_nothing(perplexity: Measure, method: str) -> None:
    few = () if method == "llm-int8" else SAMPLES
    assert 0.998 < perplexity("--method", method, *few) <= 1.005


@pytest.mark.parametrize("inputs", [(), ("--static-inputs", *SAMPLES)])
def test_floats_of_eight_bits_cost_little(perplexity: Measure, inputs: tuple[str, ...]) -> None:
    """Weights and their inputs, by row or by a stored scale of each matrix."""
    assert 0.995 < perplexity("--method", "fp8", *inputs) <= 1.01


def test_float_zeros_cost_less_than_rounding(perplexity: Measure) -> None:
    rounded = perplexity("--method", "rtn", "--group-size", "64", "--bits", "3")
    assert 1 < perplexity("--method", "hqq", "--bits", "3") < rounded


def test_matrices_that_are_skipped_are_named(tiny: Path, quantized: Callable[..., Path]) -> None:
    out = quantized(tiny, "--method", "llm-int8", "--skip", "*.down_proj")
    settings = json.loads((out / "config.json").read_text())["quantization_config"]
    skipped = [f"model.layers.{layer}.mlp.down_proj" for layer in range(6)]
    assert settings["load_in_8bit"] and settings["llm_int8_skip_modules"] == [*skipped, "lm_head"]
    assert len(quantized_names(out)) == 6 * 6


def test_scales_rounded_to_bytes_change_next_to_nothing(perplexity: Measure) -> None:
    double = perplexity("--method", "nf4")
    plain = perplexity("--method", "nf4", "--plain-scales")
    assert double != plain and abs(double / plain - 1) < 0.001
    assert double < 1.02


def test_lattice_codes_of_two_bits_cost_less_than_gptq_s_and_rounding(perplexity: Measure) -> None:
    """Although those have groups of 32 with scales of their own."""
    found = perplexity("--method", "quip", *SAMPLES, *ONE)
    groups = ("--bits", "2", "--group-size", "32", *ONE)
    gptq = perplexity("--method", "gptq", *groups, *SAMPLES)
    assert 1 < found < 1 + 0.6 * (gptq - 1)
    assert gptq < perplexity("--method", "rtn", *groups)


def test_lattice_codes_of_four_bits_cost_next_to_nothing(perplexity: Measure) -> None:
    most = sized(0.0025, 0.01)
    assert abs(perplexity("--method", "quip", "--bits", "4", *SAMPLES, *ONE) - 1) < most


def test_tables_of_rows_cost_less_than_rounding(perplexity: Measure) -> None:
    rounded = perplexity("--method", "rtn", "--group-size", "64", "--bits", "3", *SOME)
    assert 1 < perplexity("--method", "squeezellm", "--bits", "3", *SAMPLES, *SOME) < rounded
