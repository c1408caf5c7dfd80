"""Sums of products of a linear's inputs, which is all that calibrated methods ask of them."""

from __future__ import annotations

import numpy as np

#: Rows of inputs that products are summed over in float32; sums of those are float64.
CHUNK = 2048
#: Inputs of a linear that are kept as they are, about.
SAMPLE_ROWS = 512


class InputSums:
    """``X^T X`` of each linear of a layer, by the modules that share the inputs.

    Args:
        num_tokens: Of all samples together, which is how many inputs most linears will have.

    Attributes:
        sums: (K, K) float64.
        num_rows: How many inputs were seen.
        magnitudes: (K,) float64, sums of the inputs' absolute values.
        largest: (K,) float32, the largest of them.
    """

    def __init__(self, num_tokens: int = 0) -> None:
        self._stride = max(1, num_tokens // SAMPLE_ROWS)
        self._kept: dict[tuple[str, ...], list[np.ndarray]] = {}
        self.sums: dict[tuple[str, ...], np.ndarray] = {}
        self.magnitudes: dict[tuple[str, ...], np.ndarray] = {}
        self.largest: dict[tuple[str, ...], np.ndarray] = {}
        self.num_rows: dict[tuple[str, ...], int] = {}

    def add(self, modules: tuple[str, ...], inputs: np.ndarray) -> None:
        """Count inputs (T, K) of a linear."""
        for begin in range(0, len(inputs), CHUNK):
            rows = np.ascontiguousarray(inputs[begin : begin + CHUNK])
            product = rows.T @ rows
            if modules not in self.sums:
                self.sums[modules] = np.zeros(product.shape)
                self.magnitudes[modules] = np.zeros(len(product))
                self.largest[modules] = np.zeros(len(product), np.float32)
                self.num_rows[modules] = 0
                self._kept[modules] = []
            first = -self.num_rows[modules] % self._stride
            self._kept[modules].append(rows[first :: self._stride].copy())
            self.sums[modules] += product
            sizes = np.abs(rows)
            self.magnitudes[modules] += sizes.sum(axis=0, dtype=np.float64)
            np.maximum(self.largest[modules], sizes.max(axis=0), out=self.largest[modules])
            self.num_rows[modules] += len(rows)

    def sample(self, modules: tuple[str, ...]) -> np.ndarray:
        """Return some inputs of a linear (R, K), of all samples alike."""
        return np.concatenate(self._kept[modules])
