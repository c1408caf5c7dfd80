"""Adapters' changes of one part of a model, by the slots that rows of a step name.

Each linear, embedding, norm and expert's matrix that takes adapters has one
:class:`AdapterSlots`. T rows, R rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.kernels.backend import Array, Backend, Linear
from quire.kernels.batch.forward_batch import BatchRows
from quire.kernels.low_rank import LowRank, RowGroups, group_rows
from quire.kernels.matrices.host_tensor import HostTensor


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """A parameter that holds a matrix of all experts, by which PEFT may name them.

    Attributes:
        parameter: The parameter's name in adapters.
        expert: Index of this expert in the parameter.
        count: Number of experts in the parameter.
        interleaved: Whether the rows of the stacked matrices alternate.
        transposed: Whether experts are stored (in, out).
    """

    parameter: str
    expert: int
    count: int
    interleaved: bool = False
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class AdapterPlace:
    """A part of a model as adapters see it: names, shapes and how it is stored.

    Attributes:
        modules: Names in adapters of the matrices that the part is stacked of.
        rows: Outputs of each matrix.
        columns: Inputs; of an embedding the vocabulary, whose rows are its outputs; 0 of a norm.
        orders: Index of the stored row for each row of the linear, by matrix; None where the order
            is the same.
        stored: The checkpoint's modules of the same part.
        biased: Whether these modules have biases.
        transposed: Whether these modules are stored (in, out).
        whole: (vocabulary, model dim) where an adapter may bring a whole matrix, or None.
        embeds: Whether the part is an embedding, whose rows are looked up.
        aliases: Other names of a part's only module.
        stacks: The parameters that an expert may be in.
        is_expert: Whether the part belongs to an expert, which a router chooses.
        kept: Indices of the rows that are present, in the linear's order; None for all.
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
    """An adapter's change of outputs ``y``: ``(y + low rank) * factors + shifts``.

    Attributes:
        low_rank: The product that is added, or None.
        factors, shifts: (outputs,), both or None.
        whole: The linear or embedding that replaces the model's, or None.
        table: (V, R), an embedding's inputs to ``low_rank``, by token; else None.
        nbytes: Bytes of all arrays.
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
        place: The part of the model that they change.
    """

    def __init__(self, place: AdapterPlace) -> None:
        self.place = place
        self._changes: dict[int, AdapterChange] = {}

    @property
    def is_used(self) -> bool:
        """Whether any slot has a change."""
        return bool(self._changes)

    def set(self, slot: int, change: AdapterChange) -> None:
        """Apply a change to the rows of a slot from the next step on."""
        self._changes[slot] = change

    def clear(self, slot: int) -> None:
        """Remove the change of a slot."""
        self._changes.pop(slot, None)

    def get(self, slot: int) -> AdapterChange | None:
        """Return the change of a slot, or None."""
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
