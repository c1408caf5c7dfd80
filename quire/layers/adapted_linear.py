"""A linear to which each row's adapter adds its own; rows without one keep their bits.

T rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.kernels.backend import Array, Backend, Linear
from quire.kernels.forward_batch import BatchRows
from quire.kernels.low_rank import LowRank, group_rows


@dataclass(frozen=True, slots=True)
class AdapterPlace:
    """What an adapter must know of a linear to be added to it.

    Attributes:
        modules: Names of the matrices that it is stacked of, as adapters say them.
        rows: Outputs of each.
        columns: Inputs; of an embedding the vocabulary, whose rows are its outputs.
        orders: Of each, which of its stored rows each of the linear's is; None for its own.
        stored: The checkpoint's modules of the same linear.
        biased: Whether they have biases.
        transposed: Whether they are stored (in, out).
        whole: (vocabulary, model dim) where an adapter may bring a whole matrix, or None.
        embeds: Whether it is looked up.
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


@dataclass(frozen=True, slots=True)
class LinearChange:
    """What an adapter makes of a linear's outputs ``y``: ``(y + low rank) * factors + shifts``.

    Attributes:
        low_rank: Is added, or None.
        factors, shifts: (out_features,), both or None.
        whole: Multiplies in place of the linear, or None.
        nbytes: Memory of all.
    """

    low_rank: LowRank | None = None
    factors: Array | None = None
    shifts: Array | None = None
    whole: Linear | None = None
    nbytes: int = 0


class AdaptedLinear:
    """A linear of a model that adapters may be added to; see ``kernels/low_rank.py``.

    Args:
        backend: Computes.
        linear: Multiplies.
        place: What it is to adapters.
    """

    def __init__(self, backend: Backend, linear: Linear, place: AdapterPlace) -> None:
        self._backend, self._linear = backend, linear
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.nbytes, self.packed = linear.nbytes, linear.packed
        self.place = place
        self._changes: dict[int, LinearChange] = {}

    def __call__(self, x: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Multiply (T, in_features) to (T, out_features), and add what the rows' adapters do."""
        y = self._linear(x, out, rows)
        if rows is None or rows.batch.adapters is None or not self._changes:
            return y
        backend, groups = self._backend, group_rows(rows, self._backend.to_numpy)
        present = [
            (self._changes[slot], begin, end)
            for slot, (begin, end) in zip(groups.slots, groups.bounds, strict=True)
            if slot in self._changes
        ]
        for change, begin, end in present:
            if change.whole is not None:
                own = backend.from_numpy(groups.rows[begin:end])
                given = backend.gather_rows(x, own, backend.empty((end - begin, x.shape[1])))
                backend.scatter_rows(change.whole(given), own, y)
        added = [(own.low_rank, i, j) for own, i, j in present if own.low_rank is not None]
        if added:
            backend.add_low_rank(added, groups.rows, x, y)
        for change, begin, end in present:
            if change.factors is not None:
                backend.adjust_rows(y, groups.rows[begin:end], change.factors, change.shifts)
        return y

    def lookup(self, ids: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Return the linear's rows, which no adapter changes."""
        return self._linear.lookup(ids, out, rows)

    def set(self, slot: int, change: LinearChange) -> None:
        """Have rows of a slot get what an adapter makes of them, from the next step on."""
        self._changes[slot] = change

    def clear(self, slot: int) -> None:
        """Have rows of a slot get nothing."""
        self._changes.pop(slot, None)
