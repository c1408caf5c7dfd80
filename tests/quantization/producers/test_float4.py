"""Rounding to E2M1, and the scales that groups get."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.errors import ModelLoadError
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.kernels.matrices.small_floats import E2M1
from quire.quantization.producers import float4
from quire.quantization.producers.float4 import (
    e2m1_codes,
    global_factor,
    quantize_mxfp4,
    quantize_nvfp4,
)
from quire.quantization.producers.float8 import quantize_float8
from quire.quantization.producers.integer_grid import IntegerGrid
from quire.quantization.producers.round_to_nearest import quantize_rtn


def normal(rows: int = 64, columns: int = 256) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)


def made_of(kind: str, weight: np.ndarray) -> QuantizedTensor:
    if kind == "mxfp4":
        return quantize_mxfp4("w", weight)
    return quantize_nvfp4("w", weight, global_factor([weight]))


def error_of(made: QuantizedTensor, weight: np.ndarray) -> float:
    return float(np.square(made.float32() - weight).mean())


def test_codes_come_back_and_halves_go_to_the_even_one() -> None:
    np.testing.assert_array_equal(e2m1_codes(E2M1), np.arange(16))
    codes = np.arange(7, dtype=np.uint8)
    low, high = E2M1[codes], E2M1[codes + 1]
    halves = (low + high) / 2
    even = np.where(codes % 2 == 0, codes, codes + 1)
    np.testing.assert_array_equal(e2m1_codes(halves), even)
    np.testing.assert_array_equal(e2m1_codes(-halves), even | 8)
    np.testing.assert_array_equal(e2m1_codes(np.nextafter(halves, low)), codes)
    np.testing.assert_array_equal(e2m1_codes(np.nextafter(halves, high)), codes + 1)
    np.testing.assert_array_equal(E2M1[e2m1_codes(np.float32([7, -1e9]))], [6, -6])


def test_nvfp4_lies_between_integers_of_4_bits_and_floats_of_8() -> None:
    weight = normal()
    ours = error_of(made_of("nvfp4", weight), weight)
    integers = error_of(quantize_rtn("w", weight, IntegerGrid(4, 128, search=False)), weight)
    assert error_of(quantize_float8("w", weight, "channel"), weight) < ours < integers


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4"])
def test_scales_that_are_searched_lose_less(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = normal()
    searched = error_of(made_of(kind, weight), weight)
    monkeypatch.setattr(float4, "NV_STEPS", range(1))
    monkeypatch.setattr(float4, "MX_STEPS", range(1))
    assert searched < 0.97 * error_of(made_of(kind, weight), weight)


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4"])
@pytest.mark.parametrize("factor", [0.0, 1e-30, 1e-3, 1e4])
def test_groups_of_nothing_and_of_any_size(kind: str, factor: float) -> None:
    weight = normal(8, 64) * np.float32(factor)
    weight[3] = 0
    values = made_of(kind, weight).float32()
    assert np.isfinite(values).all() and not values[3].any()
    assert np.square(values - weight).sum() <= 0.03 * np.square(weight).sum()


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4"])
def test_a_weight_that_is_none_is_refused(kind: str) -> None:
    weight = normal(2, 32)
    weight[0, 0] = np.inf
    with pytest.raises(ModelLoadError, match="w: weights must be finite"):
        quantize_mxfp4("w", weight) if kind == "mxfp4" else quantize_nvfp4(
            "w", weight, np.float32(1)
        )
