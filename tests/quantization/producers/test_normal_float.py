"""NF4 and its double quantization: the book and the map, what they cost, what they save."""

from __future__ import annotations

import hashlib
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from quire.checkpoints.formats.bitsandbytes import store_four_bits
from quire.core.errors import ModelLoadError
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.models.config.config_reader import read_model_config
from quire.models.family_tensors import open_tensors
from quire.quantization.producers.normal_float import (
    BLOCK,
    FP4,
    FP4_ORDER,
    dynamic_map,
    quantize_fp4,
    quantize_nf4,
)
from quire.quantization.rounding_schemes import NF4

FIXTURES = Path(__file__).parents[2] / "fixtures" / "quantized"
#: Of ``create_dynamic_map()`` of bitsandbytes 0.50.2, as float32.
MAP = "e732639a65f497b4ad684bb166a4467708255edd5207757de8b8f0c7e1fda89c"
#: Where QLoRA's quantiles end.
LAST = 0.9677083


def normal(rows: int = 512, columns: int = 512) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)


def test_the_book_is_quantiles_of_the_normal_distribution() -> None:
    quantile = np.vectorize(NormalDist().inv_cdf)
    above = quantile(np.linspace(LAST, 0.5, 9)[:-1])
    below = -quantile(np.linspace(LAST, 0.5, 8)[:-1])
    values = np.sort(np.concatenate([above, below, [0]]))
    np.testing.assert_allclose(NF4, values / values.max(), atol=2e-7)
    assert NF4[0] == -1 and NF4[7] == 0 and NF4[15] == 1


def test_the_map_of_bytes_is_the_library_s() -> None:
    assert hashlib.sha256(dynamic_map().tobytes()).hexdigest() == MAP
    assert (np.diff(dynamic_map()) > 0).all()


def test_codes_are_the_nearest_of_the_book() -> None:
    weight = normal(64, 96)
    made = quantize_nf4("w", weight, double=False)
    blocks = weight.reshape(-1, BLOCK)
    shares = blocks / np.abs(blocks).max(axis=1, keepdims=True)
    nearest = np.abs(shares[:, :, None] - NF4).argmin(axis=2)
    np.testing.assert_array_equal(made.codes.reshape(-1, BLOCK), nearest)


def test_it_loses_less_than_integers_of_4_bits_under_the_largest_weight() -> None:
    weight = normal()
    blocks = weight.reshape(-1, BLOCK)
    steps = np.abs(blocks).max(axis=1, keepdims=True) / 7
    integers = np.square(np.rint(blocks / steps) * steps - blocks).mean()
    for double in (False, True):
        error = np.square(quantize_nf4("w", weight, double).float32() - weight).mean()
        assert error == pytest.approx(0.0085, abs=5e-5)
    assert integers == pytest.approx(0.0117, abs=1e-4)


def test_double_quantization_stores_4_127_bits_a_weight() -> None:
    weight = normal(1024, 1024)
    bits = {}
    for double in (False, True):
        parts = store_four_bits(quantize_nf4("w", weight, double), BLOCK)
        kinds = ("weight", "weight.absmax", "weight.nested_absmax")
        sizes = {name: part.nbytes for name, part in parts.items()}
        bits[double] = 8 * sum(sizes.get(name, 0) for name in kinds) / weight.size
        assert sum(sizes.values()) - bits[double] * weight.size / 8 < 2048
    assert bits[False] == 4.5 and bits[True] == pytest.approx(4.127, abs=5e-4)


def test_scales_that_are_bytes_are_close() -> None:
    weight = normal()
    plain = quantize_nf4("w", weight, double=False)
    double = quantize_nf4("w", weight, double=True)
    np.testing.assert_array_equal(plain.codes, double.codes)
    difference = np.abs(double.scale_numbers() - plain.scales)
    # Steps of the map near its ends are 0.9 / 64 of the largest of a run; half of one is lost.
    spread = np.abs(plain.scales - plain.scales.mean()).max()
    assert 0 < difference.max() <= spread * 0.9 / 128 * 1.001


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("factor", [0.0, 1e-30, 1e4])
def test_blocks_of_nothing_and_of_any_size(double: bool, factor: float) -> None:
    weight = normal(8, 80) * np.float32(factor)
    weight[3:5] = 0
    values = quantize_nf4("w", weight, double).float32()
    assert np.isfinite(values).all() and not values[4].any()
    assert np.square(values - weight).sum() <= 0.02 * np.square(weight).sum()


def test_a_weight_that_is_none_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="w: weights must be finite"):
        quantize_nf4("w", np.full((2, 32), np.nan, np.float32), True)


def test_codes_of_fp4_are_the_nearest_of_its_book() -> None:
    assert (np.diff(FP4[FP4_ORDER]) > 0).all() and {*FP4_ORDER.tolist()} == {*range(16)} - {8}
    weight = normal(64, 96)
    made = quantize_fp4("w", weight, double=False)
    blocks = weight.reshape(-1, BLOCK)
    shares = blocks / np.abs(blocks).max(axis=1, keepdims=True)
    nearest = np.abs(shares[:, :, None] - FP4).argmin(axis=2)
    np.testing.assert_array_equal(made.codes.reshape(-1, BLOCK), nearest)


def test_fp4_makes_the_codes_of_the_library_s_file_of_the_values_it_holds() -> None:
    """The largest of a block is kept, so what was rounded once is rounded to the same again."""
    folder = FIXTURES / "bnb-fp4"
    tensors = open_tensors(folder, read_model_config(folder))
    found = [tensors.tensor(name) for name in sorted(tensors.names)]
    stored = [tensor for tensor in found if isinstance(tensor, QuantizedTensor)]
    assert stored
    for tensor in stored:
        np.testing.assert_array_equal(tensor.code_book, FP4)
        again = quantize_fp4(tensor.name, tensor.float32(), double=False)
        np.testing.assert_array_equal(again.float32(), tensor.float32())
