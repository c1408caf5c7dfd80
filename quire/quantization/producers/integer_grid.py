"""Whole numbers times a scale for each group: which scale and zero a group's weights get.

``value = scale * (code - zero)``, scales rounded to float16, zeros codes. N rows, C columns of a
group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Shares of the largest weight that a grid may end at, tried in turn.
SHRINKS = np.arange(1.0, 0.5, -0.02, dtype=np.float32)
#: Larger errors count more than as squares would have it, as AutoGPTQ's search does.
ERROR_POWER = 2.4
SMALLEST_SCALE = np.float32(2.0**-14)


@dataclass(frozen=True, slots=True)
class IntegerGrid:
    """The codes that a matrix is rounded to, and their groups.

    Attributes:
        bits: 2, 3, 4 or 8.
        group_size: Columns that share a scale; 0 for all of a row.
        symmetric: Whether zero is the middle code; else each group has its own zero.
        search: Whether to cut off large weights where the group's error gets smaller by it.
    """

    bits: int
    group_size: int
    symmetric: bool = True
    search: bool = True

    @property
    def highest(self) -> int:
        """The last code."""
        return (1 << self.bits) - 1

    def fit(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return scales and zeros (N,) float32 of a group's weights (N, C)."""
        low = np.minimum(weights.min(axis=1), 0)
        high = np.maximum(weights.max(axis=1), 0)
        if self.symmetric:
            high = np.maximum(high, -low)
            low = -high
        scales, zeros = self._between(low, high)
        if not self.search:
            return scales, zeros
        best = self._error(weights, scales, zeros)
        for share in SHRINKS[1:]:
            tried = self._between(low * share, high * share)
            error = self._error(weights, *tried)
            better = error < best
            best = np.where(better, error, best)
            scales = np.where(better, tried[0], scales)
            zeros = np.where(better, tried[1], zeros)
        return scales, zeros

    def codes(self, weights: np.ndarray, scales: np.ndarray, zeros: np.ndarray) -> np.ndarray:
        """Return the nearest codes as float32, of the shape of ``weights``; the others match it."""
        codes: np.ndarray = np.rint(weights / scales)
        codes += zeros
        return np.clip(codes, 0, self.highest, out=codes)

    def _between(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        steps = (high - low) / np.float32(self.highest)
        scales = np.maximum(steps, SMALLEST_SCALE).astype(np.float16).astype(np.float32)
        if self.symmetric:
            return scales, np.full_like(scales, 1 << self.bits - 1)
        return scales, np.clip(np.rint(-low / scales), 0, self.highest)

    def _error(self, weights: np.ndarray, scales: np.ndarray, zeros: np.ndarray) -> np.ndarray:
        scales, zeros = scales[:, None], zeros[:, None]
        made = (self.codes(weights, scales, zeros) - zeros) * scales
        error: np.ndarray = (np.abs(made - weights) ** np.float32(ERROR_POWER)).sum(axis=1)
        return error
