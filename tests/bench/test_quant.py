"""``quire bench quant`` on quire-tiny, and the bits of formats by hand."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from quire.bench.quant_plot import place_labels
from quire.cli.measure.bench_quant import quant
from quire.evaluation.formats.held_bits import formula_bits
from quire.kernels.matrices.quantized_tensor import QuantizedForm

QUICK = ("--rounds", "1", "--seconds", "0", "--threads", "1", "--batch-sizes", "1,3")


@pytest.mark.parametrize(
    ("form", "bits"),
    [
        (QuantizedForm(4, 128, "float16", 8), 4.125),
        (QuantizedForm(4, 64, "float32", code_book=(0.0,) * 16), 4.5),
        (QuantizedForm(4, 16, "e4m3", row_form="over"), 4.5 + 32 / 4096),
        (QuantizedForm(6, 16, "int8", 32), 6.5625),
        (QuantizedForm(4, 32, "int4", has_offsets=True), 4.375),
        (QuantizedForm(4, 128, "float16", zero_type="uint8"), 4.1875),
        (QuantizedForm(8, 32, "odd", vectors="IQ2_XXS"), 2.0625),
        (QuantizedForm(5, 32, "odd", vectors="IQ3_S"), 3.4375),
    ],
)
def test_bits_of_a_weight_by_formula(form: QuantizedForm, bits: float) -> None:
    assert formula_bits(form, 4096, 4096) == bits


def test_formats_side_by_side() -> None:
    flags = ["quire-tiny", "--formats", "int8,int2", *QUICK, "--max-tokens", "2000"]
    done = CliRunner().invoke(quant, [*flags, "--json", "-"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    whole, eight, two = found["formats"]
    assert found["reference"] == whole["label"] == "quire-tiny"
    assert [row["bits_per_weight"] for row in found["formats"]] == [16.0, 8.5, 3.0]
    for row in found["formats"]:
        assert row["bits_per_weight"] == pytest.approx(row["formula_bits"], rel=0.02)
        assert set(row["decode"]) == {"1", "3"} and row["prefill"]["median"] > 0
    assert whole["decode"]["3"]["ratio"]["rounds"] == [1.0]
    assert whole["weight_bytes"] > 1.8 * eight["weight_bytes"] > 1.8 * two["weight_bytes"]
    assert "comparison" not in whole["quality"]
    ratios = [row["quality"]["comparison"]["ratio"]["value"] for row in (eight, two)]
    assert ratios[0] < 1.005 < 1.2 < ratios[1]


def test_what_was_not_measured_is_said() -> None:
    done = CliRunner().invoke(quant, ["quire-tiny", *QUICK, "--no-quality"])
    assert done.exit_code == 0 and "quality was not measured: --no-quality" in done.output


def test_labels_of_near_points_do_not_touch() -> None:
    near = place_labels([(4.5, 10.0), (4.5, 12.0), (3.0, 11.0)])
    assert near == [(1, -7.0), (1, 0.0), (1, 0.0)]
    # A point to its right takes the room, and nothing is on its left.
    assert place_labels([(4.2, 10.0), (4.5, 10.0)]) == [(-1, 0.0), (1, 0.0)]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--formats", "int9"], "--formats must be of"),
        (["--batch-sizes", "1,x"], "--batch-sizes must be different numbers"),
        (["--no-quality", "--perplexity", "a"], "--no-quality judges by no text"),
        (["--prompt-len", "4000"], "--prompt-len"),
        (["quire-tiny"], "models must differ"),
    ],
)
def test_settings_that_cannot_be(flags: list[str], message: str) -> None:
    done = CliRunner().invoke(quant, ["quire-tiny", *flags])
    assert done.exit_code != 0 and message in f"{done.output} {done.exception}"
