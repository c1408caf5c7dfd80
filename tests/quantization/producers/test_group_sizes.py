"""What a scale for each group of 128 costs in a file, and what it gains over one for each row."""

from __future__ import annotations

import numpy as np
import pytest

from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.quantization.producers.integer_grid import IntegerGrid
from quire.quantization.producers.round_to_nearest import quantize_rtn
from quire.quantizing.scheme import QuantizationScheme
from quire.quantizing.stored_format import FORMATS

WIDTH = 4096


def _rounded(weights: np.ndarray, group_size: int, search: bool = False) -> QuantizedTensor:
    return quantize_rtn("w", weights, IntegerGrid(4, group_size, search=search))


def _error(weights: np.ndarray, made: QuantizedTensor) -> float:
    """Return the mean square error of the values that the codes stand for."""
    rows = made.codes.shape[0]
    codes = made.codes.astype(np.float64).reshape(rows, made.scales.shape[1], -1) - made.zero
    values = (codes * made.scales.astype(np.float64)[..., None]).reshape(weights.shape)
    return float(((values - weights) ** 2).mean())


def test_groups_err_less_than_rows() -> None:
    """On Gaussian rows: the largest of 128 is nearer to the rest than the largest of 4,096.

    A search for a smaller range helps rows more than groups, and never hurts either.
    """
    weights = np.random.default_rng(0).standard_normal((64, WIDTH), dtype=np.float32)
    groups, rows = (_error(weights, _rounded(weights, size)) for size in (128, 0))
    assert groups <= 0.65 * rows
    cut_groups, cut_rows = (_error(weights, _rounded(weights, size, True)) for size in (128, 0))
    assert cut_groups < groups and cut_rows < rows
    assert groups / rows < cut_groups / cut_rows < 1


def test_scales_add_a_thirty_second() -> None:
    """Two bytes for the 64 bytes that 128 codes of 4 bits take."""
    weights = np.random.default_rng(1).standard_normal((WIDTH, WIDTH), dtype=np.float32)
    made = _rounded(weights, 128)
    parts = FORMATS["compressed-tensors"].store(
        made, QuantizationScheme(method="rtn", group_size=128)
    )
    code_bytes = parts["weight_packed"].nbytes
    assert code_bytes == WIDTH * WIDTH // 2
    assert parts["weight_scale"].nbytes / code_bytes == 2 / 64 == 0.03125


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("compressed-tensors", 4 + 16 / 128),
        ("awq", 4 + (16 + 4) / 128),
        # An index of the group for each input, which 4,096 outputs share.
        ("gptq", 4 + (16 + 4) / 128 + 32 / WIDTH),
    ],
)
def test_bits_of_a_weight_in_files(name: str, bits: float) -> None:
    weights = np.random.default_rng(2).standard_normal((WIDTH, 1024), dtype=np.float32)
    made = quantize_rtn("w", weights, IntegerGrid(4, 128, symmetric=name != "awq", search=False))
    parts = FORMATS[name].store(
        made, QuantizationScheme(method="rtn", group_size=128, symmetric=name != "awq")
    )
    held = sum(part.nbytes for key, part in parts.items() if "shape" not in key)
    assert 8 * held / weights.size == pytest.approx(bits, abs=1e-9)
    assert 8 * made.form.matrix_bytes(WIDTH, 1024) / weights.size <= 4.19
