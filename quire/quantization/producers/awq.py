"""AWQ: make columns with large inputs larger before rounding, so that they lose less by it.

``y = (W s) (x / s)``: the scales ``s = mean|x| ** alpha`` (K,) cost nothing where what computes the
inputs takes ``1 / s`` over. Alpha is the one of a grid whose rounded matrices give the smallest
error of outputs. With duo scaling ``s = mean|x| ** alpha / mean|w| ** (1 - alpha)``, where weights
are shares of the largest of their group (AutoAWQ's ``duo_scaling``). Source: Lin et al. 2024 (AWQ).
N rows, K columns, R sampled inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from quire.quantization.producers.integer_grid import IntegerGrid
from quire.quantization.producers.round_to_nearest import quantize_rtn

#: Alphas that are tried: 0, which scales nothing, to just below 1.
NUM_ALPHAS = 20
#: Rows of all matrices together, about, that choose three alphas to be tried on every row.
CHOOSING_ROWS = 1024
#: Rows of a matrix that are rounded together.
ROWS = 1024
SMALLEST = np.float32(1e-4)


@dataclass(frozen=True, slots=True)
class ScaledMatrix:
    """A matrix that shares its inputs, and so its scales, with others.

    Attributes:
        weight: (N, K) float32.
        grid: The codes that the matrix will be rounded to.
    """

    weight: np.ndarray
    grid: IntegerGrid


def search_scales(
    matrices: Sequence[ScaledMatrix],
    magnitudes: np.ndarray,
    inputs: np.ndarray,
    threads: int = 1,
    *,
    duo: bool = False,
) -> np.ndarray:
    """Return the scales of columns, (K,) float32.

    Args:
        matrices: All matrices that have these inputs.
        magnitudes: (K,) mean absolute values of the inputs.
        inputs: (R, K) float32, some of them.
        threads: Number of threads that share the rows.
        duo: Whether to look at the sizes of weights, too.
    """
    shares = _weight_shares(matrices) if duo else None
    alphas = [number / NUM_ALPHAS for number in range(NUM_ALPHAS)]
    tried = np.array([_scales(magnitudes, alpha, shares) for alpha in alphas])
    step = max(1, sum(len(matrix.weight) for matrix in matrices) // CHOOSING_ROWS)
    with ThreadPoolExecutor(threads) as pool:
        best = _best(pool, matrices, step, tried, inputs)
        if step > 1:
            tried = tried[max(0, best - 1) : best + 2]
            best = _best(pool, matrices, 1, tried, inputs)
    found: np.ndarray = tried[best]
    return found


def _best(
    pool: ThreadPoolExecutor,
    matrices: Sequence[ScaledMatrix],
    step: int,
    tried: np.ndarray,
    inputs: np.ndarray,
) -> int:
    """Return which of the tried scales does best on every ``step``-th row."""
    pieces = [
        replace(matrix, weight=matrix.weight[begin : begin + ROWS * step : step])
        for matrix in matrices
        for begin in range(0, len(matrix.weight), ROWS * step)
    ]
    errors = list(pool.map(lambda piece: _errors(piece, tried, inputs), pieces))
    return int(np.argmin(np.sum(errors, axis=0)))


def _weight_shares(matrices: Sequence[ScaledMatrix]) -> np.ndarray:
    """Return the mean share of each column's weights in the largest of their group, (K,)."""
    total, count = np.zeros(matrices[0].weight.shape[1]), 0
    for matrix in matrices:
        columns = matrix.weight.shape[1]
        size = matrix.grid.group_size or columns
        for begin in range(0, len(matrix.weight), ROWS):
            sizes = np.abs(matrix.weight[begin : begin + ROWS])
            largest = np.maximum.reduceat(sizes, np.arange(0, columns, size), axis=1)
            spread = np.repeat(largest + np.float32(1e-6), size, axis=1)[:, :columns]
            total += (sizes / spread).sum(axis=0, dtype=np.float64)
        count += len(matrix.weight)
    return (total / count).astype(np.float32)


def _scales(magnitudes: np.ndarray, alpha: float, shares: np.ndarray | None = None) -> np.ndarray:
    scales: np.ndarray = magnitudes.astype(np.float32) ** np.float32(alpha)
    if shares is not None:
        scales /= shares ** np.float32(1 - alpha) + SMALLEST
    np.maximum(scales, SMALLEST, out=scales)
    scales /= np.sqrt(scales.max() * scales.min())
    return scales


def _errors(matrix: ScaledMatrix, tried: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """Return the sum of squares of the outputs' errors for each of the tried scales."""
    grid = replace(matrix.grid, search=False)
    errors = []
    for scales in tried:
        made = quantize_rtn("scaled", matrix.weight * scales, grid).float32()
        made /= scales
        made -= matrix.weight
        errors.append(float(np.square(inputs @ made.T).sum(dtype=np.float64)))
    return np.array(errors)
