"""bfloat16 in numpy, as float32 arrays: rounding, and the fused multiply-adds of dot products."""

from __future__ import annotations

import numpy as np


def brain(values: np.ndarray) -> np.ndarray:
    """Round float32 to bfloat16, to nearest even, as float32."""
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


def flushed(values: np.ndarray) -> np.ndarray:
    """Take denormals as zero of the same sign."""
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, np.float32(0) * values, values)


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return ``a * b + c`` of float32 rounded once, broadcast.

    The product of two bfloat16 is exact in float64; the sum is but for ties of chance 2 ** -29.
    """
    return flushed((a.astype(np.float64) * b + c).astype(np.float32))
