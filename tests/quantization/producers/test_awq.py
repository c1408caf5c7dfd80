"""AWQ's scales on inputs some of which are much larger than the others."""

from __future__ import annotations

import numpy as np
import pytest

from quire.quantization.producers import awq
from quire.quantization.producers.awq import ScaledMatrix, search_scales
from quire.quantization.producers.integer_grid import IntegerGrid
from quire.quantization.producers.round_to_nearest import quantize_rtn


def outliers(columns: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a matrix and inputs of which one in sixteen is thirty times as large."""
    random = np.random.default_rng(0)
    inputs = random.standard_normal((count, columns)).astype(np.float32)
    inputs[:, ::16] *= 30
    return random.standard_normal((256, columns)).astype(np.float32), inputs


@pytest.mark.parametrize("bits", [3, 4])
def test_large_inputs_lose_less(bits: int) -> None:
    weight, inputs = outliers(512, 1024)
    grid = IntegerGrid(bits, 128, symmetric=False, search=False)
    scales = search_scales(
        [ScaledMatrix(weight, grid)], np.abs(inputs).mean(axis=0), inputs[::4], threads=2
    )
    plain = quantize_rtn("w", weight, grid).float32()
    scaled = quantize_rtn("w", weight * scales, grid).float32() / scales
    errors = [np.square(inputs @ (made - weight).T).mean() for made in (plain, scaled)]
    assert errors[1] <= 0.8 * errors[0], errors


def test_equal_inputs_are_not_scaled_much() -> None:
    weight = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)
    inputs = np.ones((8, 128), np.float32)
    scales = search_scales([ScaledMatrix(weight, IntegerGrid(4, 128))], inputs[0], inputs)
    np.testing.assert_allclose(scales, 1)


def test_threads_change_no_bit() -> None:
    weight, inputs = outliers(128, 64)
    matrices = [ScaledMatrix(np.tile(weight, (8, 1)), IntegerGrid(4, 64)) for _ in range(2)]
    magnitudes = np.abs(inputs).mean(axis=0)
    found = [search_scales(matrices, magnitudes, inputs, threads) for threads in (1, 3)]
    np.testing.assert_array_equal(*found)


def test_an_input_that_is_never_there_keeps_scales_finite() -> None:
    weight, inputs = outliers(128, 64)
    inputs[:, 5] = 0
    grid = IntegerGrid(4, 64)
    scales = search_scales([ScaledMatrix(weight, grid)], np.abs(inputs).mean(axis=0), inputs)
    assert np.isfinite(scales).all() and (scales > 0).all()


def test_few_rows_choose_which_alphas_all_rows_are_tried_on(monkeypatch) -> None:
    weight, inputs = outliers(160, 256)
    matrices, magnitudes = [ScaledMatrix(weight, IntegerGrid(3, 64))], np.abs(inputs).mean(axis=0)
    want, asked = search_scales(matrices, magnitudes, inputs), []
    errors = awq._errors

    def counted(matrix, tried, sample):
        asked.append((len(matrix.weight), len(tried)))
        return errors(matrix, tried, sample)

    monkeypatch.setattr(awq, "_errors", counted)
    monkeypatch.setattr(awq, "CHOOSING_ROWS", 64)
    np.testing.assert_array_equal(search_scales(matrices, magnitudes, inputs), want)
    assert asked == [(len(weight) // 4, awq.NUM_ALPHAS), (len(weight), 3)]


@pytest.mark.parametrize("group_size", [64, 0])
def test_duo_scaling_is_its_definition(group_size: int) -> None:
    """Weights count as shares of the largest of their group; a last group may be short."""
    weight, inputs = outliers(160, 256)
    grid = IntegerGrid(3, group_size, symmetric=False)
    magnitudes = np.abs(inputs).mean(axis=0)
    found = search_scales([ScaledMatrix(weight, grid)], magnitudes, inputs[::4], duo=True)
    size = group_size or 160
    groups = [np.abs(weight[:, begin : begin + size]) for begin in range(0, 160, size)]
    shares = np.concatenate([g / (g.max(axis=1, keepdims=True) + 1e-6) for g in groups], axis=1)
    tried = []
    for alpha in np.arange(20) / 20:
        scales = magnitudes**alpha / (shares.mean(axis=0) ** (1 - alpha) + 1e-4)
        tried.append(scales / np.sqrt(scales.max() * scales.min()))
    assert min(np.abs(scales / found - 1).max() for scales in tried) < 1e-4
    plain = search_scales([ScaledMatrix(weight, grid)], magnitudes, inputs[::4])
    assert np.abs(plain / found - 1).max() > 0.01
