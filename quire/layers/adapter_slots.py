"""What adapters make of one part of a model, by the slots that rows of a step name.

What takes adapters (a linear, an embedding, a norm, an expert's matrix) has one
:class:`AdapterSlots` each. T rows, R rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.kernels.backend import Array, Backend, Linear
from quire.kernels.forward_batch import BatchRows
from quire.kernels.host_tensor import HostTensor
from quire.kernels.low_rank import LowRank, RowGroups, group_rows


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """A parameter that holds a matrix of all experts, by which PEFT may name them.

    Attributes:
        parameter: Its name, as adapters say it.
        expert: Which of them this is.
        count: How many there are.
        interleaved: Rows of the matrices that a linear is stacked of alternate.
        transposed: Experts are stored (in, out).
    """

    parameter: str
    expert: int
    count: int
    interleaved: bool = False
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class AdapterPlace:
    """What an adapter must know of a part of a model to be added to it.

    Attributes:
        modules: Names of the matrices that it is stacked of, as adapters say them.
        rows: Outputs of each.
        columns: Inputs; of an embedding the vocabulary, whose rows are its outputs; 0 of a norm.
        orders: Of each, which of its stored rows each of the linear's is; None for its own.
        stored: The checkpoint's modules of the same part.
        biased: Whether they have biases.
        transposed: Whether they are stored (in, out).
        whole: (vocabulary, model dim) where an adapter may bring a whole matrix, or None.
        embeds: Whether it is looked up.
        aliases: Other names of its one module.
        stacks: Of an expert, the parameters that it may be in.
        is_expert: Whether a router chooses it.
        kept: Which of all rows, in the linear's order, are there; None for all.
    """

    modules: tuple[str, ...]
    rows: tuple[int, ...]
    columns: int
    orders: tuple[npt.NDArray[np.int64] | None, ...]
    stored: tuple[str, ...] = ()
    biased: bool = False
    transposed: bool = False
    whole: tuple[int, int] | None = None
    embeds: bool = False
    aliases: tuple[str, ...] = ()
    stacks: tuple[StackedExperts, ...] = ()
    is_expert: bool = False
    kept: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class AdapterChange:
    """What an adapter makes of outputs ``y``: ``(y + low rank) * factors + shifts``.

    Attributes:
        low_rank: Is added, or None.
        factors, shifts: (outputs,), both or None.
        whole: Multiplies, or is looked up, in place of the model's, or None.
        table: (V, R) of an embedding: its rows are what ``low_rank`` is given; else None.
        nbytes: Memory of all.
    """

    low_rank: LowRank | None = None
    factors: Array | None = None
    shifts: Array | None = None
    whole: Linear | None = None
    table: HostTensor | None = None
    nbytes: int = 0


#: A change, and where its rows begin and end in an array of rows.
Present = tuple[AdapterChange, int, int]


class AdapterSlots:
    """The changes of one place.

    Args:
        place: What it is to adapters.
    """

    def __init__(self, place: AdapterPlace) -> None:
        self.place = place
        self._changes: dict[int, AdapterChange] = {}

    @property
    def is_used(self) -> bool:
        """Whether any slot gets anything."""
        return bool(self._changes)

    def set(self, slot: int, change: AdapterChange) -> None:
        """Have rows of a slot get what an adapter makes of them, from the next step on."""
        self._changes[slot] = change

    def clear(self, slot: int) -> None:
        """Have rows of a slot get nothing."""
        self._changes.pop(slot, None)

    def get(self, slot: int) -> AdapterChange | None:
        """Return what rows of a slot get; None for nothing."""
        return self._changes.get(slot)

    def present(
        self, rows: BatchRows | None, backend: Backend
    ) -> tuple[list[Present], npt.NDArray[np.int32]] | None:
        """Return the changes of some rows of a step, and these rows; None where none changes."""
        if rows is None or rows.batch.adapters is None or not self._changes:
            return None
        groups: RowGroups = group_rows(rows, backend.to_numpy)
        found = [
            (self._changes[slot], begin, end)
            for slot, (begin, end) in zip(groups.keys, groups.bounds, strict=True)
            if slot in self._changes
        ]
        return (found, groups.rows) if found else None


def apply_changes(
    backend: Backend, present: Sequence[Present], rows: npt.NDArray[np.int32], x: Array, y: Array
) -> None:
    """Add what changes make of rows of ``x`` to the same rows of ``y``, and adjust these."""
    added = [(own.low_rank, i, j) for own, i, j in present if own.low_rank is not None]
    if added:
        backend.add_low_rank(added, rows, x, y)
    for change, begin, end in present:
        if change.factors is not None:
            backend.adjust_rows(y, rows[begin:end], change.factors, change.shifts)
