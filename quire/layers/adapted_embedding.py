"""An embedding to which each row's adapter adds its own; rows without one keep their bits.

T rows, R rank, V vocabulary, D model dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.kernels.backend import Array, Backend, Linear
from quire.kernels.forward_batch import BatchRows
from quire.kernels.host_tensor import HostTensor
from quire.kernels.low_rank import LowRank, group_rows
from quire.layers.adapted_linear import AdapterPlace


@dataclass(frozen=True, slots=True)
class EmbeddingChange:
    """What an adapter makes of an embedding.

    Attributes:
        table: (V, R), or None: its rows are looked up, multiplied by ``low_rank`` and added.
        low_rank: R to D.
        whole: Looked up in place of the embedding, or None.
        nbytes: Memory of all.
    """

    table: HostTensor | None = None
    low_rank: LowRank | None = None
    whole: Linear | None = None
    nbytes: int = 0


class AdaptedEmbedding:
    """An embedding that adapters may be added to; as a linear it multiplies as it did.

    Args:
        backend: Computes.
        linear: Looks up.
        place: What it is to adapters.
    """

    def __init__(self, backend: Backend, linear: Linear, place: AdapterPlace) -> None:
        self._backend, self._linear = backend, linear
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.nbytes, self.packed = linear.nbytes, linear.packed
        self.place = place
        self._changes: dict[int, EmbeddingChange] = {}

    def __call__(self, x: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Multiply, which no adapter changes here."""
        return self._linear(x, out, rows)

    def lookup(self, ids: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Return rows ``ids`` (T,) as (T, D), with what their adapters make of them."""
        y = self._linear.lookup(ids, out, rows)
        if rows is None or rows.batch.adapters is None or not self._changes:
            return y
        groups, tokens = group_rows(rows, self._backend.to_numpy), self._backend.to_numpy(ids)
        for slot, (begin, end) in zip(groups.slots, groups.bounds, strict=True):
            if slot in self._changes:
                own = groups.rows[begin:end]
                self._change(self._changes[slot], tokens[own], own, y)
        return y

    def _change(self, change: EmbeddingChange, ids: np.ndarray, rows: np.ndarray, y: Array) -> None:
        backend = self._backend
        if change.whole is not None:
            found = change.whole.lookup(backend.from_numpy(ids))
            backend.scatter_rows(found, backend.from_numpy(rows), y)
        if change.table is not None:
            table = change.table
            x = np.zeros((y.shape[0], table.shape[1]), np.float32)
            x[rows] = HostTensor(table.name, table.dtype, table.array[ids]).float32()
            groups = [(change.low_rank, 0, len(rows))]
            backend.add_low_rank(groups, rows, backend.from_numpy(x), y)

    def set(self, slot: int, change: EmbeddingChange) -> None:
        """Have rows of a slot get what an adapter makes of them, from the next step on."""
        self._changes[slot] = change

    def clear(self, slot: int) -> None:
        """Have rows of a slot get nothing."""
        self._changes.pop(slot, None)
