"""AWQ: make columns with large inputs larger before rounding, so that they lose less by it.

``y = (W s) (x / s)``: the scales ``s = mean|x| ** alpha`` (K,) cost nothing where what computes the
inputs takes ``1 / s`` over. Alpha is the one of a grid whose rounded matrices give the smallest
error of outputs. Source: Lin et al. 2024 (AWQ). N rows, K columns, R sampled inputs.
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
#: Rows of a matrix that are rounded together.
ROWS = 1024
SMALLEST = np.float32(1e-4)


@dataclass(frozen=True, slots=True)
class ScaledMatrix:
    """A matrix that shares its inputs, and so its scales, with others.

    Attributes:
        weight: (N, K) float32.
        grid: What it will be rounded to.
    """

    weight: np.ndarray
    grid: IntegerGrid


def search_scales(
    matrices: Sequence[ScaledMatrix], magnitudes: np.ndarray, inputs: np.ndarray, threads: int = 1
) -> np.ndarray:
    """Return the scales of columns, (K,) float32.

    Args:
        matrices: All that have these inputs.
        magnitudes: (K,) mean absolute values of the inputs.
        inputs: (R, K) float32, some of them.
        threads: To share rows out among.
    """
    tried = np.array([_scales(magnitudes, n / NUM_ALPHAS) for n in range(NUM_ALPHAS)])
    pieces = [
        replace(matrix, weight=matrix.weight[begin : begin + ROWS])
        for matrix in matrices
        for begin in range(0, len(matrix.weight), ROWS)
    ]
    with ThreadPoolExecutor(threads) as pool:
        errors = list(pool.map(lambda piece: _errors(piece, tried, inputs), pieces))
    best: np.ndarray = tried[int(np.argmin(np.sum(errors, axis=0)))]
    return best


def _scales(magnitudes: np.ndarray, alpha: float) -> np.ndarray:
    scales: np.ndarray = magnitudes.astype(np.float32) ** np.float32(alpha)
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
