"""Bits a weight of checkpoints that other libraries wrote, by formula and in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.cli.measure.bench_quant import create_candidates
from quire.evaluation.formats.candidate import describe
from quire.evaluation.formats.held_bits import formula_bits
from quire.evaluation.local_model import LocalModel
from quire.kernels.matrices.quantized_tensor import QuantizedForm

FIXTURES = Path(__file__).parents[1] / "fixtures" / "quantized"
SETTINGS = {"dtype": "auto", "activations": "int8", "threads": 1}
#: Of a real layer, where what a whole matrix has once weighs little.
SIDE = 2048


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("bnb-nf4", 4 + 32 / 64),
        ("bnb-nf4-nested", 4 + 8 / 64 + 32 / (64 * 256)),
        ("gptq-w4-g128", 4 + 16 / 128),
        ("gptq-w3-g32", 3 + 16 / 32),
        ("gptq-w4-g32-act-order", 4 + 16 / 32 + 32 / SIDE),
        ("awq-w4-g32", 4 + (16 + 8) / 32),
        ("fp8-block-32", 8 + 32 / 32),
        ("ct-fp8-dynamic", 8 + 16 / 96),
        ("ct-nvfp4", 4 + 8 / 16 + 32 / SIDE),
        ("ct-mxfp4", 4 + 8 / 32),
    ],
)
def test_memory_is_within_two_percent_of_the_formula(name: str, bits: float) -> None:
    """The form is what the loaded checkpoint has; its bytes are those of a matrix of real size."""
    form, figures = _loaded(name)
    assert formula_bits(form, SIDE, SIDE) == pytest.approx(bits, rel=1e-9)
    held = 8 * form.matrix_bytes(SIDE, SIDE) / SIDE**2
    assert bits <= held <= 1.02 * bits
    if form.nested is None:  # a table of 1 KiB, which is much for a matrix of 64 columns
        assert figures["bits_per_weight"] == pytest.approx(figures["formula_bits"], rel=0.02)


def _loaded(name: str) -> tuple[QuantizedForm, dict[str, float]]:
    candidate = create_candidates([str(FIXTURES / name)], [], SETTINGS)[0]
    model = LocalModel(candidate.folder, candidate.config, 8, lambda *_: None, 1)
    forms = [part.form for part in model.decoder.held.packed if part.form is not None]
    return max(forms, key=lambda form: form.group_size), describe(candidate, model)
