"""HQQ: whole numbers under zeros that are floats, found without any inputs.

``value = scale * (code - zero)`` in groups. The zero is the mean of what codes leave over, large
errors set apart as outliers (the prox of ``|e| ** 0.7``), a number of times; a group keeps the zero
of its smallest absolute error. N rows, K columns, G groups.

Source: Half-Quadratic Quantization (Badri and Shaji 2023).
"""

from __future__ import annotations

import numpy as np

from quire.kernels.matrices.quantized_tensor import QuantizedTensor, padded
from quire.quantization.producers.finite_weights import check_finite

ROUNDS, NORM = 20, np.float32(0.7)
#: How much an error counts as one, at first and by the next round.
FIRST_BETA, BETA_GROWTH = 10.0, 1.01
#: Of float16's subnormal numbers, one with some bits left.
SMALLEST_SCALE = np.float32(2.0**-20)
#: Below it an error is none: a power of it would be infinite.
SMALLEST_ERROR = np.float32(1e-12)


def quantize_hqq(name: str, weight: np.ndarray, bits: int, group_size: int) -> QuantizedTensor:
    """Round a matrix.

    Args:
        name: The matrix's name, for messages.
        weight: (N, K) float32.
        bits: 2, 3, 4 or 8.
        group_size: Columns that share a scale, a divisor of K; 0 for all of a row.

    Raises:
        ModelLoadError: A weight is infinite or NaN.
    """
    check_finite(name, weight)
    rows, columns = weight.shape
    groups = np.ascontiguousarray(weight).reshape(-1, group_size or columns)
    highest = np.float32((1 << bits) - 1)
    # With 0 in between, zeros are codes or near one, which float16 holds.
    low = np.minimum(groups.min(axis=1, keepdims=True), 0)
    high = np.maximum(groups.max(axis=1, keepdims=True), 0)
    scales = np.maximum((high - low) / highest, SMALLEST_SCALE)
    scales = scales.astype(np.float16).astype(np.float32)
    zeros = _zeros(groups, scales, -low / scales, highest)
    codes = _codes(groups, scales, zeros, highest)
    return QuantizedTensor(
        name=name,
        bits=bits,
        group_size=group_size or padded(columns),
        codes=codes.astype(np.uint8).reshape(rows, columns),
        scales=scales.astype(np.float16).reshape(rows, -1),
        zeros=zeros.astype(np.float16).reshape(rows, -1),
    )


def _zeros(
    groups: np.ndarray, scales: np.ndarray, zeros: np.ndarray, highest: np.float32
) -> np.ndarray:
    """Return the best zeros (G, 1) float32, numbers of float16."""
    zeros = zeros.astype(np.float16).astype(np.float32)
    best, least = zeros, np.full(zeros.shape, np.inf, np.float32)
    for step in range(ROUNDS):
        codes = _codes(groups, scales, zeros, highest)
        error = groups - (codes - zeros) * scales
        sizes = np.abs(error)
        size = sizes.sum(axis=1, keepdims=True)
        best = np.where(size < least, zeros, best)
        least = np.minimum(least, size)
        beta = np.float32(FIRST_BETA * BETA_GROWTH**step)
        shrunk = sizes - np.maximum(sizes, SMALLEST_ERROR) ** (NORM - 1) / beta
        outliers = np.maximum(shrunk, 0) * np.sign(error)
        zeros = np.mean(codes - (groups - outliers) / scales, axis=1, keepdims=True)
        zeros = zeros.astype(np.float16).astype(np.float32)
    return best


def _codes(
    groups: np.ndarray, scales: np.ndarray, zeros: np.ndarray, highest: np.float32
) -> np.ndarray:
    codes: np.ndarray = np.clip(np.rint(groups / scales + zeros), 0, highest)
    return codes
