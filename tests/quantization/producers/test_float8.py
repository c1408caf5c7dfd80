"""Rounding to E4M3 against its definition, and what it costs next to whole numbers."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.errors import ModelLoadError
from quire.kernels.matrices.small_floats import E4M3
from quire.quantization.producers.float8 import e4m3_codes, quantize_float8
from quire.quantization.producers.integer_grid import IntegerGrid
from quire.quantization.producers.round_to_nearest import quantize_rtn

FINITE = np.array([code for code in range(256) if code & 127 != 127], np.uint8)
POSITIVE = np.arange(127, dtype=np.uint8)


def test_all_codes_come_back() -> None:
    np.testing.assert_array_equal(e4m3_codes(E4M3[FINITE]), FINITE)
    assert E4M3[126] == 448


def test_halves_go_to_the_even_code_and_neighbours_to_the_nearest() -> None:
    low, high = E4M3[POSITIVE[:-1]], E4M3[POSITIVE[1:]]
    halves = (low + high) / 2
    even = np.where(POSITIVE[:-1] % 2 == 0, POSITIVE[:-1], POSITIVE[1:])
    np.testing.assert_array_equal(e4m3_codes(halves), even)
    np.testing.assert_array_equal(e4m3_codes(-halves), even | 128)
    np.testing.assert_array_equal(e4m3_codes(np.nextafter(halves, low)), POSITIVE[:-1])
    np.testing.assert_array_equal(e4m3_codes(np.nextafter(halves, high)), POSITIVE[1:])


def test_beyond_the_largest_is_the_largest() -> None:
    values = np.array([449, -1e30, 464.5], np.float32)
    np.testing.assert_array_equal(E4M3[e4m3_codes(values)], [448, -448, 448])


def test_next_to_bytes_under_one_scale() -> None:
    """A column of outliers spoils whole numbers, not floats; without it bytes are better."""
    usual = np.arange(256) != 3
    ratios = {}
    for factor in (1, 20):
        weight = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
        weight[:, 3] *= factor
        whole = quantize_rtn("w", weight.reshape(1, -1), IntegerGrid(8, 0, search=False))
        floats, integers = (
            np.square((made - weight)[:, usual]).mean()
            for made in (
                quantize_float8("w", weight, "tensor").float32(),
                whole.float32().reshape(256, 256),
            )
        )
        ratios[factor] = floats / integers
    assert ratios[20] <= 0.1 and ratios[1] > 1, ratios


def test_a_weight_that_is_none_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="w: weights must be finite"):
        quantize_float8("w", np.full((2, 32), np.nan, np.float32), "channel")
