"""Looking weights up in a table of vectors: the nearest one, and what it costs, by scale."""

from __future__ import annotations

import numpy as np

from quire.kernels.cpu.native import native


class VectorTable:
    """A table of vectors, and the search for the one nearest to weights.

    N vectors of D inputs, and V of the table, which is ``g``. A cost is the weighted sum of squared
    errors less ``sum(w * x ** 2)``, which no choice changes.

    Args:
        vectors: (V, D) float32; V a multiple of 256, D 4 or 8.

    Raises:
        ValueError: A search is given a table or an array of another size.

    Source: native/include/vector_search.h.
    """

    def __init__(self, vectors: np.ndarray) -> None:
        self._count, self._width = vectors.shape
        self._table = np.ascontiguousarray(vectors.T, np.float32)

    def costs(
        self, x: np.ndarray, weights: np.ndarray, flipped: np.ndarray, scales: np.ndarray
    ) -> np.ndarray:
        """Return the least cost for each of a vector's scales: (N, S) float32.

        Args:
            x: (N, D) float32, finite; not negative where ``flipped``.
            weights: (N, D) float32 >= 0.
            flipped: (N,) uint8: whether one input must have the other sign, the one that costs
                least; the table must not be negative then.
            scales: (N, S) float32 > 0.
        """
        found = np.empty(scales.shape, np.float32)
        native.vector_costs(
            self._table, self._width, self._count, *_arrays(x, weights), flipped, len(x),
            np.ascontiguousarray(scales, np.float32), scales.shape[1], found,
        )  # fmt: skip
        return found

    def nearest(
        self, x: np.ndarray, weights: np.ndarray, flipped: np.ndarray, scales: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the vectors of least cost for a scale each.

        Args:
            x, weights, flipped: See :meth:`costs`.
            scales: (N,) float32 > 0.

        Returns:
            Indices (N,) int32, of equal ones the first; ``sum(w * g ** 2)`` and
            ``sum(w * x * g)`` with the sign that is flipped, (N,) float32 each.
        """
        indices, sums = np.empty(len(x), np.int32), np.empty((len(x), 2), np.float32)
        native.nearest_vectors(
            self._table, self._width, self._count, *_arrays(x, weights), flipped, len(x),
            np.ascontiguousarray(scales, np.float32), indices, sums,
        )  # fmt: skip
        return indices, sums[:, 0], sums[:, 1]


def _arrays(*arrays: np.ndarray) -> list[np.ndarray]:
    return [np.ascontiguousarray(array, np.float32) for array in arrays]
