"""Blocks of GGUF's types from floats: a search for the codes and scales of least weighted error.

B blocks, E elements of a block, G groups of a block, S elements of a group, N = B * G.

A type with two levels has scales of groups that are integers times a float16 of the block. They are
chosen together: integers near the scales that suit each group, the float16 numbers by least squares
for those integers, and the codes anew for every pair that is tried.

How much errors count is said by ``error_weights``; the search is our own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.checkpoints.gguf.gguf_types import CODE_BOOK
from quire.checkpoints.gguf.gguf_types import BlockGroups as Unpacked
from quire.quantization.producers.gguf.error_weights import error_weights
from quire.quantization.producers.gguf.gguf_search import (
    Book,
    Grid,
    GroupFit,
    Integers,
    WeightGroups,
    quotient,
)

#: Rounds of choosing integers and then the float16 numbers of blocks.
ROUNDS = 2
#: By how much the largest scale may lie beyond the last integer, as a share of the integers.
SUPER_STEPS = np.linspace(-0.25, 0.25, 41)
HALF_MAX = np.float32(65504)


@dataclass(frozen=True, slots=True)
class BlockKind:
    """A type's grid, groups and scales.

    Attributes:
        group_size: S.
        grid: Grid of the codes; from 0 where there are offsets.
        scales: Least and largest integer of a group's scale; None where scales are float16.
        has_offsets: Whether there are offsets; under two levels they are at most 0.
    """

    group_size: int
    grid: Grid
    scales: tuple[int, int] | None = None
    has_offsets: bool = False


_BOOK = Book(CODE_BOOK)
KINDS = {
    "Q4_0": BlockKind(32, Integers(-8, 7)),
    "Q4_1": BlockKind(32, Integers(0, 15), has_offsets=True),
    "Q5_0": BlockKind(32, Integers(-16, 15)),
    "Q5_1": BlockKind(32, Integers(0, 31), has_offsets=True),
    "Q8_0": BlockKind(32, Integers(-128, 127)),
    "Q2_K": BlockKind(16, Integers(0, 3), (0, 15), has_offsets=True),
    "Q3_K": BlockKind(16, Integers(-4, 3), (-32, 31)),
    "Q4_K": BlockKind(32, Integers(0, 15), (0, 63), has_offsets=True),
    "Q5_K": BlockKind(32, Integers(0, 31), (0, 63), has_offsets=True),
    "Q6_K": BlockKind(16, Integers(-32, 31), (-128, 127)),
    "IQ4_NL": BlockKind(32, _BOOK),
    "IQ4_XS": BlockKind(32, _BOOK, (-32, 31)),
    "TQ1_0": BlockKind(256, Integers(-1, 1)),
    "TQ2_0": BlockKind(256, Integers(-1, 1)),
}


def search(name: str, blocks: np.ndarray, importance: np.ndarray | None = None) -> Unpacked:
    """Choose codes and scales.

    Args:
        name: One of :data:`KINDS`.
        blocks: (B, E) float32, finite.
        importance: (B, E) float32 >= 0, weights of the inputs' errors, or None.

    Returns:
        The codes and scales that :func:`quire.quantization.producers.gguf.gguf_pack.pack` takes.
    """
    kind = KINDS[name]
    columns = _columns(blocks, kind.group_size)
    groups = WeightGroups(columns, _columns(_weights(kind, blocks, importance), kind.group_size))
    if kind.scales is None:
        made = _one_level(kind, groups)
    elif kind.has_offsets:
        made = _Pairs(kind, groups, len(blocks)).choose()
    else:
        made = _Scales(kind, groups, len(blocks)).choose()
    return made


def _columns(blocks: np.ndarray, size: int) -> np.ndarray:
    return np.ascontiguousarray(blocks.reshape(-1, size).T)


def _weights(kind: BlockKind, blocks: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
    """Return (B, E) how much errors count; without an importance all alike under one level."""
    if importance is None and kind.scales is None:
        return np.ones_like(blocks)
    return error_weights(blocks, importance)


def _half(numbers: np.ndarray) -> np.ndarray:
    """Round to float16 numbers that are finite, as float32."""
    held: np.ndarray = np.clip(numbers, -HALF_MAX, HALF_MAX).astype(np.float16).astype(np.float32)
    return held


def _one_level(kind: BlockKind, groups: WeightGroups) -> Unpacked:
    """Scales are float16 numbers, and offsets."""
    if kind.has_offsets:
        fit = groups.fit_scales_and_offsets(int(kind.grid.high), below=False)
        offsets = _half(fit.offsets)
    else:
        fit, offsets = groups.fit_scales(kind.grid), None
    scales = _half(fit.scales)
    codes = kind.grid.codes(groups.values(kind.grid, scales, offsets))
    return Unpacked(
        codes=np.ascontiguousarray(codes.T),
        scales=scales.astype(np.float16)[:, None],
        offsets=None if offsets is None else offsets.astype(np.float16)[:, None],
    )


class _Scales:
    """Integers for scales of groups, without offsets.

    Args:
        kind: The type's grid, groups and scales.
        groups: (S, N) of all blocks.
        num_blocks: B.
    """

    def __init__(self, kind: BlockKind, groups: WeightGroups, num_blocks: int) -> None:
        assert kind.scales is not None
        self._grid, self._groups, self._num_blocks = kind.grid, groups, num_blocks
        self._low, self._high = kind.scales

    def choose(self) -> Unpacked:
        """Return codes, integers and the blocks' float16 numbers."""
        fit = self._groups.fit_scales(self._grid)
        _, squares, _ = self._groups.sums(self._groups.values(self._grid, fit.scales, None))
        wanted = self._by_block(fit.scales)
        best = _best_factor(wanted, self._by_block(squares), self._low, self._high)
        supers = _half(best)
        numbers = _near(wanted, supers, self._low, self._high)
        errors = self._errors(supers, numbers)
        for _ in range(ROUNDS):
            for step in (-1, 1):
                tried = np.clip(numbers + step, self._low, self._high)
                other = self._errors(supers, tried)
                numbers = np.where(other < errors, tried, numbers)
                errors = np.minimum(other, errors)
            supers, errors = self._refit(supers, numbers, errors)
        scales = (supers * numbers).reshape(-1)
        codes = self._grid.codes(self._groups.values(self._grid, scales, None))
        return Unpacked(
            codes=np.ascontiguousarray(codes.T).reshape(self._num_blocks, -1),
            scales=numbers.astype(np.int8),
            super_scales=supers.astype(np.float16),
        )

    def _by_block(self, numbers: np.ndarray) -> np.ndarray:
        return numbers.reshape(self._num_blocks, -1)

    def _errors(self, supers: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        scales = (supers * numbers).reshape(-1)
        values = self._groups.values(self._grid, scales, None)
        return self._by_block(self._groups.errors(values, scales, None))

    def _refit(
        self, supers: np.ndarray, numbers: np.ndarray, errors: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        scales = (supers * numbers).reshape(-1)
        sums = self._groups.sums(self._groups.values(self._grid, scales, None))
        _, squares, products = (self._by_block(part) for part in sums)
        over = (products * numbers).sum(axis=1, keepdims=True)
        under = (squares * numbers * numbers).sum(axis=1, keepdims=True)
        tried = _half(quotient(over, under))
        other = self._errors(tried, numbers)
        better = other.sum(axis=1, keepdims=True) < errors.sum(axis=1, keepdims=True)
        return np.where(better, tried, supers), np.where(better, other, errors)


class _Pairs:
    """Integers for scales and offsets of groups; see :class:`_Scales`."""

    def __init__(self, kind: BlockKind, groups: WeightGroups, num_blocks: int) -> None:
        assert kind.scales is not None
        self._grid, self._groups, self._num_blocks = kind.grid, groups, num_blocks
        self._high = kind.scales[1]

    def choose(self) -> Unpacked:
        """Return codes, integers and the blocks' float16 numbers."""
        fit: GroupFit = self._groups.fit_scales_and_offsets(int(self._grid.high), below=True)
        sums = self._groups.sums(self._groups.values(self._grid, fit.scales, fit.offsets))
        wanted = [self._by_block(part) for part in (fit.scales, -fit.offsets)]
        count = [self._by_block(part) for part in (sums[1], self._groups.total_weights)]
        supers = [
            _half(_best_factor(numbers, weights, 0, self._high))
            for numbers, weights in zip(wanted, count, strict=True)
        ]
        chosen = [_near(*pair, 0, self._high) for pair in zip(wanted, supers, strict=True)]
        errors = self._errors(supers, chosen)
        for _ in range(ROUNDS):
            chosen, errors = self._neighbours(supers, chosen, errors)
            supers, errors = self._refit(supers, chosen, errors)
        scales, offsets = self._numbers(supers, chosen)
        codes = self._grid.codes(self._groups.values(self._grid, scales, offsets))
        return Unpacked(
            codes=np.ascontiguousarray(codes.T).reshape(self._num_blocks, -1),
            scales=chosen[0].astype(np.int8),
            offsets=chosen[1].astype(np.int8),
            super_scales=supers[0].astype(np.float16),
            super_offsets=-supers[1].astype(np.float16),
        )

    def _by_block(self, numbers: np.ndarray) -> np.ndarray:
        return numbers.reshape(self._num_blocks, -1)

    def _numbers(
        self, supers: list[np.ndarray], chosen: list[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        return (supers[0] * chosen[0]).reshape(-1), -(supers[1] * chosen[1]).reshape(-1)

    def _errors(self, supers: list[np.ndarray], chosen: list[np.ndarray]) -> np.ndarray:
        scales, offsets = self._numbers(supers, chosen)
        values = self._groups.values(self._grid, scales, offsets)
        return self._by_block(self._groups.errors(values, scales, offsets))

    def _neighbours(
        self, supers: list[np.ndarray], chosen: list[np.ndarray], errors: np.ndarray
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Move each group's pair to the best of the nine around it."""
        best = chosen
        for scale in (-1, 0, 1):
            for offset in (-1, 0, 1):
                if scale == offset == 0:
                    continue
                tried = [
                    np.clip(numbers + step, 0, self._high)
                    for numbers, step in zip(chosen, (scale, offset), strict=True)
                ]
                other = self._errors(supers, tried)
                better = other < errors
                best = [np.where(better, *pair) for pair in zip(tried, best, strict=True)]
                errors = np.minimum(other, errors)
        return best, errors

    def _refit(
        self, supers: list[np.ndarray], chosen: list[np.ndarray], errors: np.ndarray
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Find both float16 numbers of a block by least squares for its codes and integers."""
        sums = self._groups.sums(self._groups.values(self._grid, *self._numbers(supers, chosen)))
        total, squares, products = (self._by_block(part) for part in sums)
        weight = self._by_block(self._groups.total_weights)
        plain = self._by_block(self._groups.total_products)
        first, second = chosen

        def of_block(numbers: np.ndarray) -> np.ndarray:
            result: np.ndarray = numbers.sum(axis=1, keepdims=True)
            return result

        a, b = of_block(first * first * squares), of_block(second * second * weight)
        c = of_block(first * second * total)
        p, q = of_block(first * products), of_block(second * plain)
        determinant = a * b - c * c
        scale = quotient(p * b - q * c, determinant)
        offset = quotient(p * c - q * a, determinant)
        # Without offsets, or where they would be of the other sign.
        alone = (b == 0) | (offset < 0)
        scale = np.where(alone, quotient(p, a), scale)
        tried = [_half(np.maximum(scale, 0)), _half(np.where(alone, 0, offset))]
        other = self._errors(tried, chosen)
        better = of_block(other) < of_block(errors)
        kept = [np.where(better, *pair) for pair in zip(tried, supers, strict=True)]
        return kept, np.where(better, other, errors)


def _near(wanted: np.ndarray, factors: np.ndarray, low: int, high: int) -> np.ndarray:
    """Return (B, G) integers whose products with factors (B, 1) are near ``wanted``."""
    factors = np.broadcast_to(factors, wanted.shape)
    numbers: np.ndarray = np.clip(np.rint(quotient(wanted, factors)), low, high)
    return numbers


def _best_factor(wanted: np.ndarray, weights: np.ndarray, low: int, high: int) -> np.ndarray:
    """Return (B, 1) factors that come nearest to ``wanted`` with integers from low to high."""
    place = np.abs(wanted).argmax(axis=1)[:, None]
    extreme = np.take_along_axis(wanted, place, axis=1)
    best = np.zeros_like(extreme)
    least = (weights * wanted * wanted).sum(axis=1, keepdims=True)
    for end in (low, high) if low else (high,):
        for step in SUPER_STEPS:
            factor = extreme / np.float32(end * (1 + step))
            numbers = _near(wanted, factor, low, high)
            over = (weights * wanted * numbers).sum(axis=1, keepdims=True)
            under = (weights * numbers * numbers).sum(axis=1, keepdims=True)
            factor = quotient(over, under)
            rest = wanted - factor * numbers
            error = (weights * rest * rest).sum(axis=1, keepdims=True)
            best = np.where(error < least, factor, best)
            least = np.minimum(error, least)
    return best
