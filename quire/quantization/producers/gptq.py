"""GPTQ: round column after column, and let the columns that are left make up for each error.

Minimises ``|W X - Q X|`` over the calibration inputs X, whose ``H = X X^T`` (K, K) is all that is
asked of them. Source: Frantar et al. 2023 (GPTQ), algorithm 1; ``act_order`` takes the columns with
the largest inputs first, ``group_aware`` (Gafni et al. 2025, GAR) without breaking groups up. N
rows, K columns, G groups of columns.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from quire.core.errors import ModelLoadError
from quire.kernels.cpu.column_rounding import MAX_COLUMNS, round_columns
from quire.kernels.matrices.quantized_tensor import QuantizedTensor, padded
from quire.quantization.producers.damped_factor import damped_factor, upper_inverse
from quire.quantization.producers.integer_grid import IntegerGrid

#: Rows that are rounded together: results do not depend on how many threads take them.
ROWS = 1024


@dataclass(frozen=True, slots=True)
class GPTQSettings:
    """The order of columns, and the damping.

    Attributes:
        act_order: Whether columns are taken by the size of their inputs, the largest first.
        damping: Share of the mean of H's diagonal that is added to the diagonal.
        group_aware: Whether columns are taken by the size of their inputs within each group, and
            groups by their largest input. No column leaves its group, so that no order is stored.
            Not with ``act_order``.
    """

    act_order: bool = False
    damping: float = 0.01
    group_aware: bool = False


def quantize_gptq(
    name: str,
    weight: np.ndarray,
    hessian: np.ndarray,
    grid: IntegerGrid,
    settings: GPTQSettings | None = None,
    threads: int = 1,
) -> QuantizedTensor:
    """Round a matrix.

    Args:
        name: The matrix's name, for messages.
        weight: (N, K) float32.
        hessian: (K, K) float32 or float64, sums of products of inputs; any positive factor.
        grid: The codes.
        settings: None for the defaults.
        threads: Number of threads that share the rows.

    Raises:
        ModelLoadError: A weight or a sum is infinite or NaN.
    """
    settings = settings or GPTQSettings()
    rows, columns = weight.shape
    if not (np.isfinite(weight).all() and np.isfinite(hessian).all()):
        raise ModelLoadError(
            f"[quantize] {name}: weights and the sums of its inputs must be finite; got infinity "
            "or NaN. Look at the checkpoint and the calibration text."
        )
    silent = np.diagonal(hessian) == 0
    left = weight
    if silent.any():
        left, hessian = np.where(silent, np.float32(0), weight), hessian.copy()
        hessian[silent, silent] = 1
    order = None
    if settings.act_order:
        order = np.argsort(-np.diagonal(hessian), kind="stable")
    elif settings.group_aware:
        order, groups = _order_in_groups(np.diagonal(hessian), grid.group_size or columns)
    if order is not None:
        left, hessian = left[:, order], hessian[np.ix_(order, order)]
    errors_reach = _inverse_root(hessian, settings.damping)
    chunks = [left[begin : begin + ROWS] for begin in range(0, rows, ROWS)]
    with ThreadPoolExecutor(max(1, min(threads, len(chunks)))) as pool:
        parts = list(pool.map(lambda chunk: _round_rows(chunk, errors_reach, grid), chunks))
    codes, scales, zeros = (np.concatenate(part) for part in zip(*parts, strict=True))
    if settings.group_aware:
        assert order is not None and not settings.act_order
        back, groups_back = np.argsort(order), np.argsort(groups)
        codes = np.ascontiguousarray(codes[:, back])
        scales, zeros = scales[:, groups_back], zeros[:, groups_back]
        order = None
    shared = grid.symmetric
    return QuantizedTensor(
        name=name,
        bits=grid.bits,
        group_size=grid.group_size or padded(columns),
        codes=codes,
        scales=scales.astype(np.float16),
        zero=1 << grid.bits - 1 if shared else 0,
        zeros=None if shared else zeros.astype(np.uint8),
        input_order=None if order is None else order.astype(np.int32),
    )


def _order_in_groups(sizes: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the order of columns (K,) and that of their groups (G,).

    Args:
        sizes: (K,) of the inputs.
        size: Columns of a group; a shorter one at the end stays there.
    """
    starts = range(0, len(sizes), size)
    inside = [begin + np.argsort(-sizes[begin : begin + size], kind="stable") for begin in starts]
    largest = np.maximum.reduceat(sizes, np.array(starts))
    if len(inside[-1]) < size:
        largest[-1] = -np.inf
    groups = np.argsort(-largest, kind="stable")
    return np.concatenate([inside[group] for group in groups]), groups


def _round_rows(
    weight: np.ndarray, errors_reach: np.ndarray, grid: IntegerGrid
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes (N, K) uint8, scales and zeros (N, G) float32 of rows (N, K)."""
    rows = _Rows(weight, errors_reach, grid)
    rows.round(0, weight.shape[1])
    return rows.codes, rows.scales, rows.zeros


class _Rows:
    """Rows while they are rounded, by halves: nearly all products are of large matrices then."""

    def __init__(self, weight: np.ndarray, errors_reach: np.ndarray, grid: IntegerGrid) -> None:
        rows, columns = weight.shape
        self._left, self._errors = np.array(weight, np.float32), np.empty(weight.shape, np.float32)
        self._reach, self._grid, self._size = errors_reach, grid, grid.group_size or columns
        self.codes = np.empty(weight.shape, np.uint8)
        self.scales, self.zeros = np.empty((2, rows, -(-columns // self._size)), np.float32)

    def round(self, begin: int, end: int) -> None:
        """Round columns that got the errors of all before them: groups, or a part of one."""
        columns, size, width = self._left.shape[1], self._size, end - begin
        group = begin // size
        if begin == group * size and width <= size and end == min(begin + size, columns):
            fitted = self._grid.fit(self._left[:, begin:end])
            self.scales[:, group], self.zeros[:, group] = fitted
        if width <= min(size, MAX_COLUMNS):
            self.codes[:, begin:end], self._errors[:, begin:end] = round_columns(
                self._left[:, begin:end],
                self._reach[begin:end, begin:end],
                self.scales[:, group],
                self.zeros[:, group],
                self._grid.highest,
            )
            return
        step = size if width > size else MAX_COLUMNS
        middle = begin + -(-width // step) // 2 * step
        self.round(begin, middle)
        reach = self._reach[begin:middle, middle:end]
        self._left[:, middle:end] -= self._errors[:, begin:middle] @ reach
        self.round(middle, end)


def _inverse_root(hessian: np.ndarray, damping: float) -> np.ndarray:
    """Return the upper Cholesky factor of the inverse of a damped H, (K, K) float32."""
    # Written backwards, a lower factor is an upper one: H = R R^T, H^-1 = R^-T R^-1.
    lower = damped_factor(hessian[::-1, ::-1], damping)
    # A factor is as well conditioned as the root of what it is of: float32 is enough from here.
    return upper_inverse(lower[::-1, ::-1].astype(np.float32))
