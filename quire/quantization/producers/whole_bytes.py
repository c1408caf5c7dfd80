"""Bytes from -127 to 127 times a float32 scale for each row, of the row's largest weight.

N rows, K columns of a matrix. Source: LLM.int8() (Dettmers et al. 2022), vector-wise.
"""

from __future__ import annotations

import numpy as np

from quire.kernels.matrices.quantized_tensor import QuantizedTensor, padded
from quire.quantization.producers.finite_weights import check_finite

ZERO = 128
#: Rows whose largest weight is smaller are all 0.
SMALLEST = np.float32(1e-35)
PART = np.float32(1 / 127)


def quantize_bytes(name: str, weight: np.ndarray) -> QuantizedTensor:
    """Round a matrix to bytes, half to even.

    Args:
        name: The matrix's name, for messages.
        weight: (N, K) float32.

    Raises:
        ModelLoadError: A weight is infinite or NaN.
    """
    check_finite(name, weight)
    largest = np.abs(weight).max(axis=1, keepdims=True)
    used = largest >= SMALLEST
    steps = np.where(used, np.float32(127) / np.where(used, largest, 1), 0)
    codes = np.rint(weight * steps.astype(np.float32)) + ZERO
    return QuantizedTensor(
        name=name,
        bits=8,
        group_size=padded(weight.shape[1]),
        codes=codes.astype(np.uint8),
        scales=np.where(used, largest, 0).astype(np.float32) * PART,
        zero=ZERO,
    )
