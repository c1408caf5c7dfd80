"""Rotations that spread large numbers over all of a row: Hadamard transforms, times a small matrix.

``rotate(x) = (M kron H / sqrt(p)) x`` for rows of ``n = b * p`` numbers: p is the largest power of
two that divides n, H the Hadamard matrix of p in natural order (``H[i, j] = (-1) ** popcount(i &
j)``) and M an orthogonal matrix (b, b), 1 where n is a power of two. Each is undone by the one of
``M.T``. CPU: native/cpu/rotation.h.

Source: Tseng et al. 2024 (QuIP#); splitting n so that M is orthogonal, not Hadamard: QuIP-for-all.
"""

from __future__ import annotations

import numpy as np


def odd_part(size: int) -> int:
    """Return b of n: what is left of it without its factors of two."""
    return size // (size & -size)


def hartley_matrix(size: int) -> np.ndarray:
    """Return an orthogonal matrix (size, size) float32 whose elements are alike in size.

    That of the discrete Hartley transform: no element is over ``sqrt(2 / size)``, where a Hadamard
    matrix, which has no odd sizes, would have ``sqrt(1 / size)`` everywhere.
    """
    angles = 2 * np.pi * (np.outer(np.arange(size), np.arange(size)) % size) / size
    matrix: np.ndarray = ((np.cos(angles) + np.sin(angles)) / np.sqrt(size)).astype(np.float32)
    return matrix


def hadamard(rows: np.ndarray) -> np.ndarray:
    """Return the Hadamard transform, not scaled, of each row of (..., p); p is a power of two.

    Twice it is p times what there was, exactly where numbers are whole and not too large.
    """
    size = rows.shape[-1]
    made = np.array(rows)
    half = 1
    while half < size:
        pairs = made.reshape(*rows.shape[:-1], size // (2 * half), 2, half)
        sums = pairs[..., 0, :] + pairs[..., 1, :]
        np.subtract(pairs[..., 0, :], pairs[..., 1, :], out=pairs[..., 1, :])
        pairs[..., 0, :] = sums
        half *= 2
    return made


def rotate(rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Rotate each row.

    Args:
        rows: (..., n).
        matrix: M, (b, b) float32 or float64, orthogonal.

    Returns:
        The same shape; float64 if either is.
    """
    base, size = len(matrix), rows.shape[-1]
    power = size // base
    parts = hadamard(rows.reshape(*rows.shape[:-1], base, power))
    parts *= parts.dtype.type(1 / np.sqrt(power))
    if base > 1:
        parts = matrix @ parts
    return parts.reshape(rows.shape)
