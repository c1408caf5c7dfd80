"""Placements of experts on ranks, and the rank that multiplies a row; plain numbers.

E experts, R routed rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from quire.settings.parallel_layout import split


@dataclass(frozen=True)
class ExpertPlacement:
    """Experts on ranks; experts that several ranks have are redundant.

    Attributes:
        ranks: Ranks that have each expert, at least one, by expert.
        size: Number of ranks.
    """

    ranks: tuple[tuple[int, ...], ...]
    size: int

    def of(self, rank: int) -> list[int]:
        """Return the experts that a rank has."""
        return [expert for expert, ranks in enumerate(self.ranks) if rank in ranks]

    @cached_property
    def _choices(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Number of ranks that have each expert (E,), and these ranks (E, most ranks)."""
        counts = np.array([len(ranks) for ranks in self.ranks])
        table = np.zeros((len(self.ranks), counts.max()), np.int64)
        for expert, ranks in enumerate(self.ranks):
            table[expert, : len(ranks)] = ranks
        return counts, table

    def owners(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Return the rank that multiplies each of R rows; the ranks of an expert take turns.

        Args:
            ids: (R,), the experts of the rows.
        """
        counts, table = self._choices
        if table.shape[1] == 1:
            only: npt.NDArray[np.int64] = table[ids, 0]
            return only
        order = np.argsort(ids, kind="stable")
        firsts = np.searchsorted(ids[order], ids[order], side="left")
        turns = np.empty(len(ids), np.int64)
        turns[order] = np.arange(len(ids)) - firsts
        found: npt.NDArray[np.int64] = table[ids, turns % counts[ids]]
        return found

    def imbalance(self, rows: Sequence[int]) -> float:
        """Return the rows of the busiest rank over the ranks' mean, given each expert's rows."""
        loads = np.zeros(self.size)
        for ranks, count in zip(self.ranks, rows, strict=True):
            loads[list(ranks)] += count / len(ranks)
        return float(loads.max() / loads.mean()) if loads.any() else 1.0


@dataclass(frozen=True, slots=True)
class ExpertDivision:
    """The division of a layer's experts over ranks.

    Attributes:
        whole: Whether each rank has some experts; else it has a part of every one, and the other
            fields are 0.
        redundant: Places of each rank for experts that other ranks have, too.
        interval: Steps after which experts may move; 0 for never.
    """

    whole: bool = False
    redundant: int = 0
    interval: int = 0


def first_placement(num_experts: int, size: int, redundant: int) -> ExpertPlacement:
    """Return the placement of experts before any of them has had a row."""
    if not redundant:
        return even_placement(num_experts, size)
    return balanced_placement([1] * num_experts, size, -(-num_experts // size) + redundant)


def even_placement(num_experts: int, size: int) -> ExpertPlacement:
    """Return a placement of neighbours on one rank; more ranks than experts share each expert."""
    if size > num_experts:
        parts = split(size, num_experts)
        return ExpertPlacement(tuple(tuple(part) for part in parts), size)
    ranks = [(rank,) for rank, part in enumerate(split(num_experts, size)) for _ in part]
    return ExpertPlacement(tuple(ranks), size)


def balanced_placement(rows: Sequence[int], size: int, slots: int) -> ExpertPlacement:
    """Return a placement of experts that had some numbers of rows.

    Each expert gets one of ``size * slots`` places, and the busiest get those that are left; then
    the busiest copies go to the ranks that have the fewest rows so far.

    Source: the redundant experts of DeepSeek-AI 2024 (DeepSeek-V3); Graham 1969 (longest first).
    """
    copies = np.ones(len(rows), np.int64)
    loads = np.array(rows, np.float64)
    for _ in range(size * slots - len(rows)):
        each = np.where(copies < size, loads / copies, -1.0)
        if each.max() < 0:
            break
        copies[each.argmax()] += 1
    shares = loads / copies
    places: list[list[int]] = [[] for _ in rows]
    taken, used = np.zeros(size), np.zeros(size, np.int64)
    for expert in sorted(range(len(rows)), key=lambda expert: -shares[expert]):
        for _ in range(copies[expert]):
            free = [r for r in range(size) if used[r] < slots and r not in places[expert]]
            if not free:
                break
            rank = min(free, key=lambda r: taken[r])
            places[expert].append(rank)
            taken[rank] += shares[expert]
            used[rank] += 1
    return ExpertPlacement(tuple(tuple(sorted(ranks)) for ranks in places), size)
