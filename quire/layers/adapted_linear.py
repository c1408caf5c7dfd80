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
        modules: The checkpoint's names of the matrices that it is stacked of.
        rows: Outputs of each.
        columns: Inputs.
        orders: Of each, which of its stored rows each of the linear's is; None for its own.
    """

    modules: tuple[str, ...]
    rows: tuple[int, ...]
    columns: int
    orders: tuple[npt.NDArray[np.int64] | None, ...]


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
        self._adapters: dict[int, LowRank] = {}

    def __call__(self, x: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Multiply (T, in_features) to (T, out_features), and add what the rows' adapters do."""
        y = self._linear(x, out, rows)
        if rows is not None and rows.batch.adapters is not None:
            found, groups = self._adapters, group_rows(rows, self._backend.to_numpy)
            present = [
                (found[slot], begin, end)
                for slot, (begin, end) in zip(groups.slots, groups.bounds, strict=True)
                if slot in found
            ]
            if present:
                self._backend.add_low_rank(present, groups.rows, x, y)
        return y

    def lookup(self, ids: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Return the linear's rows, which no adapter changes."""
        return self._linear.lookup(ids, out, rows)

    def set(self, slot: int, adapter: LowRank) -> None:
        """Have rows of a slot get what an adapter adds, from the next step on."""
        self._adapters[slot] = adapter

    def clear(self, slot: int) -> None:
        """Have rows of a slot get nothing."""
        self._adapters.pop(slot, None)
