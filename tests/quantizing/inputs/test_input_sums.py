"""Sums of products against float64, over widths and counts around panels and chunks."""

from __future__ import annotations

import numpy as np
import pytest

from quire.quantizing.inputs.input_sums import CHUNK, PANEL, InputSums

LINEAR = ("gate", "up")


def inputs_of(rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, width), np.float32)


@pytest.mark.parametrize("width", [1, PANEL - 1, PANEL, PANEL + 1, 2 * PANEL + 77])
@pytest.mark.parametrize("rows", [1, 300, CHUNK + 1])
def test_sums_are_those_of_all_inputs(width, rows):
    sums, inputs = InputSums(), inputs_of(rows, width)
    half = rows // 2
    sums.add(LINEAR, inputs[:half])
    sums.add(LINEAR, inputs[half:])
    sums.complete()
    exact = inputs.astype(np.float64)
    found = sums.sums[LINEAR]
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, found.T)
    # A float32 sum of n products is off by less than n steps of the sum of their sizes.
    bound = min(rows, CHUNK) * 2.0**-24 * (np.abs(exact).T @ np.abs(exact))
    assert (np.abs(found - exact.T @ exact) <= bound).all()
    np.testing.assert_allclose(sums.magnitudes[LINEAR], np.abs(exact).sum(axis=0), rtol=1e-12)
    assert sums.num_rows[LINEAR] == rows


def test_linears_of_different_widths_do_not_mix():
    sums = InputSums()
    wide, narrow = inputs_of(70, 2 * PANEL + 5), inputs_of(70, 40, seed=1)
    alone = InputSums()
    alone.add(("down",), narrow)
    for begin in (0, 35):
        sums.add(LINEAR, wide[begin : begin + 35])
    sums.add(("down",), narrow)
    sums.complete()
    alone.complete()
    np.testing.assert_array_equal(sums.sums[("down",)], alone.sums[("down",)])
    assert sums.sums[LINEAR].shape == (2 * PANEL + 5,) * 2


def test_a_sample_is_taken_from_all_inputs_alike():
    sums, inputs = InputSums(num_tokens=5000), inputs_of(5000, 3)
    for begin in range(0, 5000, 700):
        sums.add(LINEAR, inputs[begin : begin + 700])
    np.testing.assert_array_equal(sums.sample(LINEAR), inputs[:: 5000 // 512])


def test_inputs_are_not_kept():
    """The caller uses its memory again."""
    sums, inputs = InputSums(num_tokens=10), inputs_of(10, 3)
    sums.add(LINEAR, inputs)
    before = inputs.copy()
    inputs[:] = 0
    np.testing.assert_array_equal(sums.sample(LINEAR), before)
