"""Floats of 8 bits, E4M3, times a scale for each row, each matrix or each block.

``value = scale * E4M3[code]``, ``scale = max|w| / 448``, rounded to nearest, half to even.
N rows, K columns. Source: OCP 8-bit Floating Point 1.0.
"""

from __future__ import annotations

import numpy as np

from quire.kernels.matrices.quantized_tensor import QuantizedTensor, padded
from quire.quantization.producers.finite_weights import check_finite

LARGEST = np.float32(448)
#: Outputs and inputs of a block.
BLOCK = 128
#: Numbers from this on have a leading bit; steps below it are all ``SMALL_STEP``.
SMALLEST_NORMAL, SMALL_STEP = np.float32(2.0**-6), np.float32(2.0**-9)
SCALES = ("channel", "tensor", "block")


def e4m3_codes(values: np.ndarray) -> np.ndarray:
    """Return the nearest codes, uint8, of finite float32 values; beyond 448 that of 448."""
    sizes = np.minimum(np.abs(values), LARGEST)
    bits = sizes.view(np.uint32)
    # Half of what is cut off is added, less one bit where the last one kept is even.
    nearest = bits + np.uint32(0x7FFFF) + (bits >> np.uint32(20) & np.uint32(1))
    normal = (nearest >> np.uint32(20)) - np.uint32((127 - 7) << 3)
    small = np.rint(sizes / SMALL_STEP).astype(np.uint32)
    codes: np.ndarray = np.where(sizes < SMALLEST_NORMAL, small, normal).astype(np.uint8)
    codes |= np.signbit(values).astype(np.uint8) << np.uint8(7)
    return codes


def quantize_float8(name: str, weight: np.ndarray, scales: str) -> QuantizedTensor:
    """Round a matrix.

    Args:
        name: The matrix's name, for messages.
        weight: (N, K) float32.
        scales: ``channel`` for a scale of each row, ``tensor`` for one scale, ``block`` for a scale
            of each :data:`BLOCK` rows and columns.

    Raises:
        ModelLoadError: A weight is infinite or NaN.
    """
    check_finite(name, weight)
    rows, columns = weight.shape
    size = BLOCK if scales == "block" and columns > BLOCK else padded(columns)
    sizes = np.abs(weight)
    largest = np.maximum.reduceat(sizes, np.arange(0, columns, size), axis=1)
    if scales == "tensor":
        largest = np.full_like(largest, largest.max())
    elif scales == "block":
        heights = np.maximum.reduceat(largest, np.arange(0, rows, BLOCK), axis=0)
        largest = np.repeat(heights, BLOCK, axis=0)[:rows]
    steps = largest / LARGEST
    steps[steps == 0] = 1
    spread = np.repeat(steps, size, axis=1)[:, :columns]
    return QuantizedTensor(
        name=name,
        bits=8,
        group_size=size,
        codes=e4m3_codes(weight / spread),
        scales=np.ascontiguousarray(steps),
        float_codes=True,
    )
