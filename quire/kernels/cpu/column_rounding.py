"""Rounding columns of weights where the columns that are left make up for each error."""

from __future__ import annotations

import numpy as np

from quire.kernels.cpu.native import native

#: Columns of one call, at most.
MAX_COLUMNS = 128


def round_columns(
    left: np.ndarray, reach: np.ndarray, scales: np.ndarray, zeros: np.ndarray, highest: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return codes (N, C) uint8, and errors (N, C) float32 as those after them are given them.

    Args:
        left: (N, C) float32, weights less the errors of all columns before; finite.
        reach: (C, C) float32, how much of a column's error each after it takes.
        scales, zeros: (N,) float32; ``value = scale * (code - zero)``.
        highest: The last code, at most 255.

    Raises:
        ValueError: C is above :data:`MAX_COLUMNS`.

    Source: native/include/column_rounding.h.
    """
    codes, errors = np.empty(left.shape, np.uint8), np.empty(left.shape, np.float32)
    native.round_columns(
        *(np.ascontiguousarray(array, np.float32) for array in (left, reach, scales, zeros)),
        highest, *left.shape, codes, errors,
    )  # fmt: skip
    return codes, errors
