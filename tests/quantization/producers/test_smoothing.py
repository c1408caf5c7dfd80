"""Scales that take outliers of inputs over to weights, in a simulation of both as bytes."""

from __future__ import annotations

import numpy as np

from quire.quantization.producers.smoothing import SMALLEST, smoothing_scales
from quire.quantization.producers.whole_bytes import quantize_bytes

STRENGTH = 0.5


def data(outliers: float) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs (T, K), some columns of which are large, and weights (N, K)."""
    random = np.random.default_rng(0)
    inputs = random.standard_normal((256, 512)).astype(np.float32)
    inputs[:, ::64] *= outliers
    return inputs, random.standard_normal((128, 512)).astype(np.float32) * np.float32(0.05)


def error_in_bytes(inputs: np.ndarray, weight: np.ndarray) -> float:
    """Return the mean square of outputs' errors where tokens and rows are rounded to bytes."""
    steps = np.abs(inputs).max(axis=1, keepdims=True) / 127
    rounded = np.rint(inputs / steps) * steps
    outputs = rounded @ quantize_bytes("w", weight).float32().T
    return float(np.square(outputs - inputs @ weight.T).mean())


def test_with_outliers_less_than_half_of_the_error_is_left() -> None:
    inputs, weight = data(50)
    scales = smoothing_scales([weight], np.abs(inputs).max(axis=0), STRENGTH)
    np.testing.assert_allclose(
        (inputs / scales) @ (weight * scales).T, inputs @ weight.T, atol=1e-3
    )
    smoothed = error_in_bytes(inputs / scales, weight * scales)
    assert 0 < smoothed <= 0.5 * error_in_bytes(inputs, weight)


def test_columns_of_inputs_and_weights_end_alike() -> None:
    inputs, weight = data(50)
    for strength in (0.0, 0.5, 1.0):
        scales = smoothing_scales([weight[:64], weight[64:]], np.abs(inputs).max(axis=0), strength)
        of_inputs = np.abs(inputs / scales).max(axis=0)
        of_weights = np.abs(weight * scales).max(axis=0)
        flat = {0.0: of_weights, 0.5: of_inputs / of_weights, 1.0: of_inputs}[strength]
        np.testing.assert_allclose(flat, 1, rtol=1e-5)


def test_columns_that_nothing_comes_through_are_left() -> None:
    weight = np.ones((2, 4), np.float32)
    weight[:, 1] = 0
    scales = smoothing_scales([weight], np.float32([0, 3, 1e-30, 4]), STRENGTH)
    np.testing.assert_allclose(scales, [1, 1, SMALLEST, 2])
