"""NF4: the nearest of 16 quantiles of the normal distribution, times the largest of 64 weights.

FP4, which bitsandbytes has as well, differs in the 16 values: those of a float of a sign, two bits
of exponent and one of mantissa, over its largest.

Blocks go on from row to row. Their scales are bytes themselves with double quantization: of a map
of 8 bits, times the largest of 256, plus the mean of all. N rows, K columns of a matrix.

Source: QLoRA (Dettmers et al. 2023); the map: 8-bit Optimizers (Dettmers et al. 2021).
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from quire.kernels.matrices.nested_scales import NestedScales
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.quantization.producers.finite_weights import check_finite
from quire.quantization.rounding_schemes import NF4

BLOCK, NESTED_BLOCK = 64, 256
#: Values of the codes of FP4; there are two of 0.
FP4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3], np.float32)
FP4 /= np.float32(12)
#: Its codes by their values, the second 0 left out.
FP4_ORDER = np.array([11, 10, 13, 12, 15, 14, 9, 0, 1, 6, 7, 4, 5, 2, 3], np.uint8)
SMALLEST = np.float32(1e-38)
#: Weights that are looked up at a time.
CHUNK = 1 << 20


@cache
def dynamic_map() -> np.ndarray:
    """Return the values of bytes (256,) float32, ascending from -0.993 to 1.

    Of seven decades below 1, each next has half as many values: the middles of even steps from a
    tenth of it, of both signs; and 0 and 1.
    """
    values = [np.zeros(1, np.float32), np.ones(1, np.float32)]
    for decade in range(7):
        borders = _even(1 << decade)
        middles = (borders[:-1] + borders[1:]) / np.float32(2) * np.float32(10.0 ** (decade - 6))
        values += [middles, -middles]
    return np.sort(np.concatenate(values))


def _even(steps: int) -> np.ndarray:
    """Return 0.1 to 1 in even steps of a float32, each rounded once, as torch.linspace does."""
    low, high = np.float32(0.1), np.float32(1)
    step, count = np.float64((high - low) / np.float32(steps)), np.arange(steps + 1)
    values = np.where(count < (steps + 1) // 2, low + step * count, high - step * (steps - count))
    return values.astype(np.float32)


def quantize_nf4(name: str, weight: np.ndarray, double: bool) -> QuantizedTensor:
    """Round a matrix to NF4.

    Args:
        name: The matrix's name, for messages.
        weight: (N, K) float32, K a multiple of 16.
        double: Whether scales are rounded to bytes, too.

    Raises:
        ModelLoadError: A weight is infinite or NaN.
    """
    check_finite(name, weight)
    codes, scales = _blocks(weight, NF4, BLOCK)
    return _in_blocks(name, codes.reshape(weight.shape), scales, NF4, double)


def quantize_fp4(name: str, weight: np.ndarray, double: bool) -> QuantizedTensor:
    """Round a matrix to FP4; as :func:`quantize_nf4` otherwise."""
    check_finite(name, weight)
    numbers, scales = _blocks(weight, FP4[FP4_ORDER], BLOCK)
    return _in_blocks(name, FP4_ORDER[numbers].reshape(weight.shape), scales, FP4, double)


def _in_blocks(
    name: str, codes: np.ndarray, scales: np.ndarray, book: np.ndarray, double: bool
) -> QuantizedTensor:
    """Return a matrix of codes (N, K) and scales of its blocks."""
    rows, columns = codes.shape
    group_size = math.gcd(BLOCK, columns)
    nested = None
    if double:
        offset = np.mean(scales, dtype=np.float32)
        scales, numbers = _blocks(scales - offset, dynamic_map(), NESTED_BLOCK)
        run = NESTED_BLOCK * (BLOCK // group_size)
        nested = NestedScales(dynamic_map(), numbers, float(offset), run)
    spread = np.repeat(scales, BLOCK // group_size)[: codes.size // group_size]
    return QuantizedTensor(
        name=name,
        bits=4,
        group_size=group_size,
        codes=codes,
        scales=spread.reshape(rows, -1),
        code_book=book,
        nested=nested,
    )


def _blocks(values: np.ndarray, book: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return codes of all values, in one row, and the largest of each block of them."""
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    count = len(flat)
    largest = np.maximum.reduceat(np.abs(flat), np.arange(0, count, size))
    inverse = np.float32(1) / np.maximum(largest, SMALLEST)
    borders = (book[:-1] + book[1:]) / np.float32(2)
    codes = np.empty(count, np.uint8)
    for begin in range(0, count, CHUNK):
        part = slice(begin, min(begin + CHUNK, count))
        factors = np.repeat(inverse[begin // size : -(-part.stop // size)], size)
        shares = flat[part] * factors[: part.stop - begin]
        codes[part] = np.searchsorted(borders, shares)
    return codes, largest
