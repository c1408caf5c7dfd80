"""Codes and scales of small groups of weights: those with the least weighted error found.

Groups stand in columns, so that sums over them are sums of rows: S elements of a group, N groups.
A code's value is a float here; what is stored for it is the caller's business.

Source: the candidates are those of ggml's ``make_qx_quants`` and ``make_qkx3_quants`` (scales that
put the extreme weight on or near the last code). Here both ends of the codes are tried, and least
squares and rounding take turns from the best one on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

#: Fractions of a code by which the extreme weight may lie beyond the last code, or before it.
SIGNED_STEPS = (0.0, -0.8, -0.5, -0.25, 0.25, 0.5, 0.8)
SPAN_STEPS = (0.0, -0.8, -0.6, -0.4, -0.2, 0.2, 0.4, 0.6, 0.8)
#: Turns of least squares and rounding after the best candidate.
TURNS = 4
#: Share of their squares below which a difference of sums is no more than rounding.
SAME = np.float32(1e-6)


class Grid(Protocol):
    """Values that codes may have.

    Attributes:
        low, high: The least and the largest, ``low <= 0 < high``.
        step: Distance between the values at the ends.
    """

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def step(self) -> float: ...

    def nearest(self, ratios: np.ndarray) -> np.ndarray:
        """Return the nearest values; ``ratios`` may be written over."""
        ...

    def codes(self, values: np.ndarray) -> np.ndarray:
        """Return uint8 codes of values of the grid."""
        ...


@dataclass(frozen=True, slots=True)
class Integers:
    """All integers from ``low`` to ``high``; the code of ``low`` is 0."""

    low: float
    high: float
    step: float = 1.0

    def nearest(self, ratios: np.ndarray) -> np.ndarray:
        """Round in place; halves to even."""
        np.rint(ratios, out=ratios)
        np.maximum(ratios, np.float32(self.low), out=ratios)
        np.minimum(ratios, np.float32(self.high), out=ratios)
        return ratios

    def codes(self, values: np.ndarray) -> np.ndarray:
        """Count from ``low``."""
        return (values - np.float32(self.low)).astype(np.uint8)


class Book:
    """16 values in rising order, integers between -128 and 127."""

    step = 8.0

    def __init__(self, values: np.ndarray) -> None:
        numbers = values.astype(np.float32)
        self.low, self.high = float(numbers[0]), float(numbers[-1])
        middles = (numbers[1:] + numbers[:-1]) / 2
        # By halves: the middles are whole halves.
        halves = np.arange(-256, 256, dtype=np.float32) / 2
        index = np.searchsorted(middles, halves, side="right")
        self._values = numbers[index]
        self._codes = index[::2].astype(np.uint8)

    def nearest(self, ratios: np.ndarray) -> np.ndarray:
        """Look values up."""
        ratios *= np.float32(2)
        np.floor(ratios, out=ratios)
        np.maximum(ratios, np.float32(-256), out=ratios)
        np.minimum(ratios, np.float32(255), out=ratios)
        return self._values.take(ratios.astype(np.int16) + np.int16(256))

    def codes(self, values: np.ndarray) -> np.ndarray:
        """Look codes up."""
        return self._codes.take(values.astype(np.int16) + np.int16(128))


@dataclass(slots=True)
class GroupFit:
    """The best found for each group.

    Attributes:
        scales: (N,) float32.
        offsets: (N,) float32, 0 where there are none.
        errors: (N,) float32, weighted sums of squares.
    """

    scales: np.ndarray
    offsets: np.ndarray
    errors: np.ndarray

    def improve(self, scales: np.ndarray, offsets: np.ndarray, errors: np.ndarray) -> None:
        """Take what is better."""
        better = errors < self.errors
        np.copyto(self.scales, scales, where=better)
        np.copyto(self.offsets, offsets, where=better)
        np.copyto(self.errors, errors, where=better)


class WeightGroups:
    """Weights of groups and how much each one's error counts.

    Args:
        x: (S, N) float32.
        weights: (S, N) float32, >= 0.

    Attributes:
        count: N.
        total_weights: (N,) float32.
        total_products: (N,) float32, sums of weights times x.
    """

    def __init__(self, x: np.ndarray, weights: np.ndarray) -> None:
        self.x, self.weights = x, weights
        self.count = x.shape[1]
        self._products = weights * x
        self._scratch = np.empty_like(x)
        self._other = np.empty_like(x)
        self.total_weights = np.maximum(np.add.reduce(weights), np.finfo(np.float32).tiny)
        self.total_products = np.add.reduce(self._products)

    def values(self, grid: Grid, scales: np.ndarray, offsets: np.ndarray | None) -> np.ndarray:
        """Return the nearest values of the grid, (S, N); overwritten by the next call."""
        ratios = self._scratch
        if offsets is None:
            np.multiply(self.x, inverse(scales), out=ratios)
        else:
            np.subtract(self.x, offsets, out=ratios)
            ratios *= inverse(scales)
        return grid.nearest(ratios)

    def errors(
        self, values: np.ndarray, scales: np.ndarray, offsets: np.ndarray | None
    ) -> np.ndarray:
        """Return (N,) weighted sums of squares."""
        rest = np.multiply(values, scales, out=self._other)
        if offsets is not None:
            rest += offsets
        rest -= self.x
        rest *= rest
        rest *= self.weights
        total: np.ndarray = np.add.reduce(rest)
        return total

    def sums(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return weighted sums over groups: of values, of their squares, and of values times x."""
        weighted = np.multiply(values, self.weights, out=self._other)
        total = np.add.reduce(weighted)
        weighted *= values
        squares = np.add.reduce(weighted)
        np.multiply(values, self._products, out=weighted)
        return total, squares, np.add.reduce(weighted)

    def fit_scales(self, grid: Grid) -> GroupFit:
        """Find scales for ``x = scale * value``."""
        x = self.x
        most, least = x.max(axis=0), x.min(axis=0)
        extreme = np.where(most > -least, most, least)
        zero = np.zeros(self.count, np.float32)
        fit = GroupFit(zero.copy(), zero, self.errors(np.zeros_like(x), zero, None))
        for end in (grid.low, grid.high):
            for step in SIGNED_STEPS:
                self._fit_scale(grid, extreme / np.float32(end + step * grid.step), fit)
        for _ in range(TURNS):
            self._fit_scale(grid, fit.scales, fit)
        return fit

    def _fit_scale(self, grid: Grid, scales: np.ndarray, fit: GroupFit) -> None:
        values = self.values(grid, scales, None)
        weighted = np.multiply(values, self.weights, out=self._other)
        weighted *= values
        squares = np.add.reduce(weighted)
        np.multiply(values, self._products, out=weighted)
        scales = quotient(np.add.reduce(weighted), squares)
        fit.improve(scales, fit.offsets, self.errors(values, scales, None))

    def fit_scales_and_offsets(self, levels: int, *, below: bool) -> GroupFit:
        """Find scales and offsets for ``x = scale * value + offset``, values 0 to ``levels``.

        Args:
            levels: The last code.
            below: Offsets are at most 0.
        """
        x, grid = self.x, Integers(0, levels)
        least = x.min(axis=0)
        low = np.minimum(least, 0) if below else least
        span = x.max(axis=0) - low
        offsets = low if below else self.total_products / self.total_weights
        nothing = np.zeros_like(span)
        fit = GroupFit(nothing, offsets.copy(), self.errors(np.zeros_like(x), nothing, offsets))
        for step in SPAN_STEPS:
            self._fit_both(grid, span / np.float32(levels + step), low, fit, below)
        for _ in range(TURNS):
            self._fit_both(grid, fit.scales, fit.offsets, fit, below)
        return fit

    def _fit_both(
        self, grid: Grid, scales: np.ndarray, offsets: np.ndarray, fit: GroupFit, below: bool
    ) -> None:
        values = self.values(grid, scales, offsets)
        total, squares, products = self.sums(values)
        weight, sum_x = self.total_weights, self.total_products
        determinant = weight * squares - total * total
        scales = quotient(weight * products - sum_x * total, determinant)
        offsets = quotient(squares * sum_x - total * products, determinant)
        if below:
            # The sign is wrong, or all codes are the same.
            alone = (offsets > 0) | (determinant <= weight * squares * SAME)
            scales = np.where(alone, quotient(products, squares), scales)
            offsets = np.where(alone, np.float32(0), offsets)
        fit.improve(scales, offsets, self.errors(values, scales, offsets))


def inverse(numbers: np.ndarray) -> np.ndarray:
    """Return 1 / numbers, and 0 where that is no finite number."""
    return quotient(np.ones_like(numbers), numbers)


def quotient(numerators: np.ndarray, denominators: np.ndarray) -> np.ndarray:
    """Return quotients, and 0 where they are no finite numbers."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        result: np.ndarray = numerators / denominators
    result[~np.isfinite(result)] = 0
    return result
