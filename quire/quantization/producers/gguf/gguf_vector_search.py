"""Blocks of GGUF's types of vector codes from floats: IQ1, IQ2 and IQ3.

Vectors of the table are chosen by weighted error, for scales of a group on a ladder and then by
least squares in turns. The float16 number of a block and the groups' odd integers are chosen
together: integers near the scales that suit each group, and the number by least squares for those.

Where eight signs must have an even number of negative ones and do not, the sign that costs least
is the wrong one, and which one is part of what each vector of the table costs.

Least squares make blocks smaller than they were, by the share of error that is left: a fifth at
IQ1_S. Such an error is the same for all outputs and adds up from layer to layer, so in the end
blocks are made larger, half way to where their products with the weights are the weights' own: of
none, half and all of it, half left the least divergence (quire-tiny, IQ1_M: 0.262, 0.235, 0.244).

B blocks, G groups of a block, N = B * G groups, V vectors of a group, D inputs of a vector.

Source: the search is our own; how much errors count is ggml's ``quantize_row_iq2_s_impl``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from quire.kernels.cpu.vector_search import VectorTable
from quire.kernels.matrices.vector_codes import VECTOR_CODES
from quire.kernels.matrices.vector_grids import vector_grid
from quire.quantization.producers.gguf.error_weights import error_weights
from quire.quantization.producers.gguf.gguf_search import quotient
from quire.quantization.producers.gguf.gguf_vector_pack import VectorChoice

#: Scales that are tried, as shares of the one at which a table's values are as large as weights.
LADDER = np.geomspace(0.6, 1.7, 16).astype(np.float32)
#: Turns of least squares and looking up after the best of them.
TURNS = 2
#: Rounds of choosing integers and then the float16 number of blocks.
ROUNDS = 2
#: Numbers of a block that are tried, as shares of the one that brings all groups in reach.
SUPER_STEPS = np.geomspace(0.7, 1.4, 36).astype(np.float32)
#: Of those, how many are tried with vectors looked up anew.
TRIED = 4
#: Integers around the nearest that are tried: they are odd.
STEPS = np.array([0, -2, 2], np.float32)
#: By how much a block is made larger at most.
MOST_GAIN = np.float32(1.5)
HALF_MAX = np.float32(65504)
#: Types whose eighth sign makes the number of negative ones even.
EVEN_SIGNS = ("IQ2_XXS", "IQ2_XS", "IQ3_XXS")
#: Least scale that is searched: below it a block is stored as zeros.
TINY = np.float32(1e-30)


@dataclass(frozen=True, slots=True)
class Found:
    """Vectors of groups at a scale: sums (N,) of squares and products, and indices (N, V)."""

    squares: np.ndarray
    products: np.ndarray
    indices: np.ndarray
    flipped: np.ndarray


@cache
def _table(name: str, shift: int) -> VectorTable:
    """Return values times the step of a type; of IQ1 an eighth more or less, or both (0)."""
    codes = VECTOR_CODES[name]
    grid = vector_grid(codes.grid).astype(np.float32)
    if codes.grid == "IQ1":
        grid = grid + shift if shift else np.concatenate([grid + 1, grid - 1])
    return VectorTable(grid * np.float32(codes.step))


class _Groups:
    """Weights of groups, and their lookup.

    Args:
        name: Name of the type.
        x, weights: (N, S) float32; S inputs of a group.
    """

    def __init__(self, name: str, x: np.ndarray, weights: np.ndarray) -> None:
        self._name, self.count = name, len(x)
        self.one_sign = VECTOR_CODES[name].grid != "IQ1"
        self.width = vector_grid(VECTOR_CODES[name].grid).shape[1]
        self.negative = x < 0
        folded = np.abs(x) if self.one_sign else x
        self._x = folded.reshape(-1, self.width)
        self._weights = weights.reshape(-1, self.width)
        self.energy = (weights * x * x).sum(axis=1)
        self.total_weights = np.maximum(weights.sum(axis=1), np.finfo(np.float32).tiny)
        self._odd = np.zeros(x.size // 8, np.uint8)
        if name in EVEN_SIGNS:
            self._odd = (self.negative.reshape(-1, 8).sum(axis=1) & 1).astype(np.uint8)
        #: Numbers of the table's parts that groups choose between.
        self._shifts = (1, -1) if name == "IQ1_S" else (0,)

    def costs(self, scales: np.ndarray) -> np.ndarray:
        """Return what groups cost at scales (N, C): (N, C) float32."""
        each = [self._costs(shift, scales) for shift in self._shifts]
        least: np.ndarray = np.minimum.reduce(each)
        return least

    def _costs(self, shift: int, scales: np.ndarray) -> np.ndarray:
        table, per_group = _table(self._name, shift), len(self._x) // self.count
        each = np.repeat(scales, per_group, axis=0)
        if self.width == 8:
            found = table.costs(self._x, self._weights, self._odd, each)
        else:
            found = self._pairs_costs(table, each)
        total: np.ndarray = found.reshape(self.count, -1, scales.shape[1]).sum(axis=1)
        return total

    def _pairs_costs(self, table: VectorTable, each: np.ndarray) -> np.ndarray:
        """Return costs of four inputs, of eight that share a parity; the better flip of two."""
        found = table.costs(self._x, self._weights, np.zeros(len(self._x), np.uint8), each)
        odd = np.flatnonzero(self._odd)
        if len(odd):
            halves = (2 * odd[:, None] + np.arange(2)).ravel()
            flips = np.ones(len(halves), np.uint8)
            other = table.costs(self._x[halves], self._weights[halves], flips, each[halves])
            extra = (other - found[halves]).reshape(len(odd), 2, -1).min(axis=1)
            found[2 * odd] += extra
        return found

    def look_up(self, scales: np.ndarray) -> Found:
        """Return the vectors of least cost at scales (N,)."""
        best = self._look_up(self._shifts[0], scales)
        for shift in self._shifts[1:]:
            other = self._look_up(shift, scales)
            cost, least = (
                scales * (scales * part.squares - 2 * part.products) for part in (other, best)
            )
            better = cost < least
            best = Found(
                np.where(better, other.squares, best.squares),
                np.where(better, other.products, best.products),
                np.where(better[:, None], other.indices, best.indices),
                np.where(better[:, None], other.flipped, best.flipped),
            )
        return best

    def _look_up(self, shift: int, scales: np.ndarray) -> Found:
        table, per_group = _table(self._name, shift), len(self._x) // self.count
        each = np.repeat(scales, per_group)
        flips = self._odd
        if self.width == 4:
            flips = self._flipped_halves(table, each)
        indices, squares, products = table.nearest(self._x, self._weights, flips, each)
        if shift < 0:
            indices = indices + len(vector_grid("IQ1"))
        parts = [part.reshape(self.count, -1) for part in (squares, products, indices, flips)]
        return Found(parts[0].sum(axis=1), parts[1].sum(axis=1), parts[2], parts[3])

    def _flipped_halves(self, table: VectorTable, each: np.ndarray) -> np.ndarray:
        """Return in which half of eight inputs a sign is flipped: (vectors,) uint8."""
        flips = np.zeros(len(self._x), np.uint8)
        odd = np.flatnonzero(self._odd)
        if len(odd):
            halves = (2 * odd[:, None] + np.arange(2)).ravel()
            parts = self._x[halves], self._weights[halves]
            scales = each[halves, None]
            plain, other = (
                table.costs(*parts, np.full(len(halves), flip, np.uint8), scales) for flip in (0, 1)
            )
            extra = (other - plain).reshape(-1, 2)
            flips[2 * odd + (extra[:, 1] < extra[:, 0])] = 1
        return flips

    def signs(self, found: Found) -> np.ndarray:
        """Return (N, S) bool: which inputs are negative, those flipped taken into account."""
        if not self.one_sign:
            down = found.indices >= len(vector_grid("IQ1"))
            return np.repeat(down, self.width, axis=1)
        negative = self.negative.reshape(-1, self.width).copy()
        flipped = np.flatnonzero(found.flipped)
        grid = vector_grid(VECTOR_CODES[self._name].grid)[found.indices.reshape(-1)[flipped]]
        costs = grid * (self._x[flipped] * self._weights[flipped])
        negative[flipped, costs.argmin(axis=1)] ^= True
        return negative.reshape(self.count, -1)


def vector_weights(blocks: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
    """Return (B, 256) float32, how much errors count: more for large weights, too.

    ``importance * sqrt(2 * mean(x ** 2) + x ** 2)``, the mean of the block.
    """
    squares = blocks * blocks
    sizes: np.ndarray = np.sqrt(2 * squares.mean(axis=1, keepdims=True) + squares)
    return sizes if importance is None else sizes * error_weights(blocks, importance)


def search_vectors(name: str, blocks: np.ndarray, weights: np.ndarray) -> VectorChoice:
    """Choose vectors, signs and scales.

    Args:
        name: One of :data:`quire.kernels.matrices.vector_codes.VECTOR_CODES`.
        blocks: (B, 256) float32, finite.
        weights: (B, 256) float32 >= 0, see :func:`vector_weights`.
    """
    size = VECTOR_CODES[name].group_size
    # Sums of squares of the largest numbers are finite in these units.
    unit = np.maximum(np.abs(blocks).max(axis=1, keepdims=True), TINY)
    heaviest = np.maximum(weights.max(axis=1, keepdims=True), np.finfo(np.float32).tiny)
    x, counts = blocks / unit, weights / heaviest
    groups = _Groups(name, x.reshape(-1, size), counts.reshape(-1, size))
    return _Blocks(name, groups, len(blocks)).choose(unit)


class _Blocks:
    """Integers and float16 numbers of blocks.

    Args:
        name: Name of the type.
        groups: Groups of all blocks.
        count: B.
    """

    def __init__(self, name: str, groups: _Groups, count: int) -> None:
        self._groups, self._count = groups, count
        self._top = 7 if name.startswith("IQ1") else 15
        grid = vector_grid(VECTOR_CODES[name].grid).astype(np.float32)
        step = np.float32(VECTOR_CODES[name].step)
        self._size = step * np.sqrt((grid * grid).mean())

    def choose(self, unit: np.ndarray) -> VectorChoice:
        """Return what is stored; scales are in units (B, 1)."""
        wanted, weight = (self._by_block(part) for part in self._fit())
        best, numbers, errors = self._best_numbers(self._supers(wanted, weight, unit), wanted)
        for _ in range(ROUNDS):
            best, numbers, errors = self._refit(best, numbers, errors, unit)
        found = self._groups.look_up(self._positive((best * numbers).reshape(-1)))
        best = self._enlarged(best, numbers, found)
        indices = found.indices
        if not self._groups.one_sign:
            indices = indices % len(vector_grid("IQ1"))
        return VectorChoice(
            indices.reshape(self._count, -1),
            self._groups.signs(found).reshape(self._count, -1),
            ((numbers - 1) / 2).astype(np.uint8),
            np.minimum(best * unit, HALF_MAX).astype(np.float16),
        )

    def _enlarged(self, supers: np.ndarray, numbers: np.ndarray, found: Found) -> np.ndarray:
        """Return numbers half way to those whose products with weights are the weights' own."""
        energy = self._by_block(self._groups.energy).sum(axis=1, keepdims=True)
        product = (self._by_block(found.products) * numbers).sum(axis=1, keepdims=True)
        factor = quotient(energy, product * supers)
        larger: np.ndarray = supers * np.sqrt(np.clip(factor, 1, MOST_GAIN))
        return larger

    def _by_block(self, numbers: np.ndarray) -> np.ndarray:
        return numbers.reshape(self._count, -1)

    @staticmethod
    def _positive(scales: np.ndarray) -> np.ndarray:
        positive: np.ndarray = np.maximum(scales, TINY)
        return positive

    def _fit(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the scales that suit each group best, and how much an error of one counts."""
        groups = self._groups
        start = np.sqrt(groups.energy / groups.total_weights) / self._size
        ladder = self._positive(start[:, None] * LADDER)
        best = groups.costs(ladder).argmin(axis=1)
        scales = ladder[np.arange(len(ladder)), best]
        for _ in range(TURNS):
            found = groups.look_up(scales)
            scales = np.where(found.products > 0, quotient(found.products, found.squares), scales)
            scales = self._positive(scales)
        return scales, found.squares

    def _odd_near(self, wanted: np.ndarray, supers: np.ndarray) -> np.ndarray:
        ratios = quotient(*np.broadcast_arrays(wanted, supers))
        near: np.ndarray = 2 * np.clip(np.rint((ratios - 1) / 2), 0, self._top) + 1
        return near

    def _supers(self, wanted: np.ndarray, weight: np.ndarray, unit: np.ndarray) -> np.ndarray:
        """Return (B, TRIED) numbers of blocks that come nearest to the scales wanted."""
        least = wanted.max(axis=1, keepdims=True) / np.float32(2 * self._top + 1)
        tried = least * SUPER_STEPS
        errors = np.empty(tried.shape, np.float32)
        for i in range(tried.shape[1]):
            numbers = self._odd_near(wanted, tried[:, i : i + 1])
            over = (weight * wanted * numbers).sum(axis=1)
            under = (weight * numbers * numbers).sum(axis=1)
            tried[:, i] = self._half(quotient(over, under), unit[:, 0])
            rest = wanted - tried[:, i : i + 1] * numbers
            errors[:, i] = (weight * rest * rest).sum(axis=1)
        order = errors.argsort(axis=1, kind="stable")[:, :TRIED]
        return np.take_along_axis(tried, order, axis=1)

    @staticmethod
    def _half(numbers: np.ndarray, unit: np.ndarray) -> np.ndarray:
        """Round to what is a float16 number times ``unit``."""
        halves = np.clip(numbers * unit, 0, HALF_MAX).astype(np.float16).astype(np.float32)
        held: np.ndarray = halves / unit
        return held

    def _best_numbers(
        self, supers: np.ndarray, wanted: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the best of numbers of blocks (B, C), with integers near the scales wanted.

        Returns:
            Numbers (B, 1), integers (B, G), and blocks' errors (B, 1).
        """
        per_block = wanted.shape[1]
        near = self._odd_near(wanted[:, :, None], supers[:, None, :])
        tried = np.clip(near[..., None] + STEPS, 1, 2 * self._top + 1)
        scales = (tried * supers[:, None, :, None]).reshape(self._groups.count, -1)
        costs = self._groups.costs(self._positive(scales)).reshape(tried.shape)
        integer = costs.argmin(axis=3)[..., None]
        errors = np.take_along_axis(costs, integer, axis=3)[..., 0].sum(axis=1)
        best = errors.argmin(axis=1)[:, None]
        chosen = np.take_along_axis(tried, integer, axis=3)[..., 0]
        place = np.broadcast_to(best[:, :, None], (self._count, per_block, 1))
        return (
            np.take_along_axis(supers, best, axis=1),
            np.take_along_axis(chosen, place, axis=2)[..., 0],
            np.take_along_axis(errors, best, axis=1),
        )

    def _refit(
        self, supers: np.ndarray, numbers: np.ndarray, errors: np.ndarray, unit: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return numbers of blocks by least squares for their vectors, and integers for those."""
        found = self._groups.look_up(self._positive((supers * numbers).reshape(-1)))
        squares, products = self._by_block(found.squares), self._by_block(found.products)
        over = (products * numbers).sum(axis=1, keepdims=True)
        under = (squares * numbers * numbers).sum(axis=1, keepdims=True)
        tried = self._half(np.maximum(quotient(over, under), 0), unit)
        _, other, rest = self._best_numbers(tried, tried * numbers)
        better = rest < errors
        return (
            np.where(better, tried, supers),
            np.where(better, other, numbers),
            np.where(better, rest, errors),
        )
