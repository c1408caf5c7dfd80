"""Sums of products of a linear's inputs, which is all that calibrated methods ask of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Rows of inputs that products are summed over in float32; sums of those are float64.
CHUNK = 2048
#: Columns whose products with themselves and all after them are made together.
PANEL = 512
#: Inputs of a linear that are kept as they are, about.
SAMPLE_ROWS = 512


@dataclass(slots=True)
class LinearSums:
    """Sums of one linear's inputs, before triangles are completed.

    Attributes:
        products: (K, K) float64, panels from the diagonal on.
        magnitudes: (K,) float64.
        squares: (K,) float64.
        largest: (K,) float32.
        num_rows: Number of inputs that were seen.
        kept: (R, K) float32 each, some of the inputs.
    """

    products: np.ndarray
    magnitudes: np.ndarray
    squares: np.ndarray
    largest: np.ndarray
    num_rows: int
    kept: list[np.ndarray]


class InputSums:
    """``X^T X`` of each linear of a layer, by the modules that share the inputs.

    While inputs are added, only panels from the diagonal on are kept; :meth:`complete` makes the
    lower one of it.

    Args:
        num_tokens: Tokens of all samples together, which is the number of inputs of most linears.

    Attributes:
        sums: (K, K) float64.
        num_rows: Number of inputs that were seen.
        magnitudes: (K,) float64, sums of the inputs' absolute values.
        squares: (K,) float64, sums of their squares.
        largest: (K,) float32, the largest of them.
    """

    def __init__(self, num_tokens: int = 0) -> None:
        self._stride = max(1, num_tokens // SAMPLE_ROWS)
        self._kept: dict[tuple[str, ...], list[np.ndarray]] = {}
        self._products = np.empty(0, np.float32)
        self.sums: dict[tuple[str, ...], np.ndarray] = {}
        self.magnitudes: dict[tuple[str, ...], np.ndarray] = {}
        self.squares: dict[tuple[str, ...], np.ndarray] = {}
        self.largest: dict[tuple[str, ...], np.ndarray] = {}
        self.num_rows: dict[tuple[str, ...], int] = {}

    def add(self, modules: tuple[str, ...], inputs: np.ndarray) -> None:
        """Count inputs (T, K) of a linear."""
        width = inputs.shape[1]
        if modules not in self.sums:
            self.sums[modules] = np.zeros((width, width))
            self.magnitudes[modules] = np.zeros(width)
            self.squares[modules] = np.zeros(width)
            self.largest[modules] = np.zeros(width, np.float32)
            self.num_rows[modules] = 0
            self._kept[modules] = []
        self.squares[modules] += sum_of_squares(inputs)
        for begin in range(0, len(inputs), CHUNK):
            rows = np.ascontiguousarray(inputs[begin : begin + CHUNK])
            first = -self.num_rows[modules] % self._stride
            self._kept[modules].append(rows[first :: self._stride].copy())
            self._add_products(self.sums[modules], rows)
            sizes = np.abs(rows)
            self.magnitudes[modules] += sizes.sum(axis=0, dtype=np.float64)
            np.maximum(self.largest[modules], sizes.max(axis=0), out=self.largest[modules])
            self.num_rows[modules] += len(rows)

    def _add_products(self, sums: np.ndarray, rows: np.ndarray) -> None:
        width = rows.shape[1]
        # Fresh memory for each panel would cost as much as adding it up.
        if self._products.size < min(PANEL, width) * width:
            self._products = np.empty(min(PANEL, width) * width, np.float32)
        for begin in range(0, width, PANEL):
            end = min(begin + PANEL, width)
            shape = end - begin, width - begin
            products = self._products[: shape[0] * shape[1]].reshape(shape)
            np.matmul(rows[:, begin:end].T, rows[:, begin:], out=products)
            sums[begin:end, begin:] += products

    def get(self, modules: tuple[str, ...]) -> LinearSums:
        """Return what was summed of a linear's inputs, before :meth:`complete`."""
        return LinearSums(
            self.sums[modules],
            self.magnitudes[modules],
            self.squares[modules],
            self.largest[modules],
            self.num_rows[modules],
            self._kept[modules],
        )

    def put(self, modules: tuple[str, ...], sums: LinearSums) -> None:
        """Take what was summed of a linear's inputs elsewhere, before :meth:`complete`."""
        self.sums[modules], self.magnitudes[modules] = sums.products, sums.magnitudes
        self.squares[modules], self.largest[modules] = sums.squares, sums.largest
        self.num_rows[modules], self._kept[modules] = sums.num_rows, sums.kept

    def complete(self) -> None:
        """Fill the lower triangles; no inputs are added afterwards."""
        for sums in self.sums.values():
            for begin in range(0, len(sums), PANEL):
                end = begin + PANEL
                sums[end:, begin:end] = sums[begin:end, end:].T
                # A general product of a block with itself is symmetric but for its last bits.
                square = sums[begin:end, begin:end]
                square[:] = np.triu(square) + np.triu(square, 1).T

    def sample(self, modules: tuple[str, ...]) -> np.ndarray:
        """Return some inputs of a linear (R, K), of all samples alike."""
        return np.concatenate(self._kept[modules])


def sum_of_squares(inputs: np.ndarray) -> np.ndarray:
    """Return the sums of squares (K,) float64 of inputs (T, K)."""
    sums: np.ndarray = np.einsum("tk,tk->k", inputs, inputs, dtype=np.float64)
    return sums
