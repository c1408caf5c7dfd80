"""Round each weight to the nearest code of its group's grid; nothing is asked of the inputs."""

from __future__ import annotations

import numpy as np

from quire.kernels.matrices.quantized_tensor import QuantizedTensor, padded
from quire.quantization.producers.finite_weights import check_finite
from quire.quantization.producers.integer_grid import IntegerGrid


def quantize_rtn(name: str, weight: np.ndarray, grid: IntegerGrid) -> QuantizedTensor:
    """Round a matrix.

    Args:
        name: The matrix's name, for messages.
        weight: (N, K) float32.
        grid: The codes.

    Raises:
        ModelLoadError: A weight is infinite or NaN.
    """
    check_finite(name, weight)
    rows, columns = weight.shape
    size = grid.group_size or columns
    groups = -(-columns // size)
    codes = np.empty((rows, columns), np.uint8)
    scales, zeros = np.empty((rows, groups), np.float32), np.empty((rows, groups), np.float32)
    for group in range(groups):
        part = slice(group * size, (group + 1) * size)
        scales[:, group], zeros[:, group] = grid.fit(weight[:, part])
        scale, zero = scales[:, group, None], zeros[:, group, None]
        codes[:, part] = grid.codes(weight[:, part], scale, zero)
    shared = grid.symmetric
    return QuantizedTensor(
        name=name,
        bits=grid.bits,
        group_size=grid.group_size or padded(columns),
        codes=codes,
        scales=scales.astype(np.float16),
        zero=1 << grid.bits - 1 if shared else 0,
        zeros=None if shared else zeros.astype(np.uint8),
    )
