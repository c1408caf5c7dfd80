"""An embedding to which each row's adapter adds its own; rows without one keep their bits.

T rows, R rank, D model dim.
"""

from __future__ import annotations

import numpy as np

from quire.kernels.backend import Array, Backend, Linear
from quire.kernels.batch.forward_batch import BatchRows
from quire.kernels.matrices.host_tensor import HostTensor
from quire.layers.adapters.adapter_slots import AdapterChange, AdapterSlots, apply_changes


class AdaptedEmbedding:
    """An embedding that adapters may be added to; as a linear it multiplies as it did.

    Args:
        backend: The backend that computes.
        linear: The embedding without adapters.
        slots: The adapters' changes of its rows.
    """

    def __init__(self, backend: Backend, linear: Linear, slots: AdapterSlots) -> None:
        self._backend, self._linear, self._slots = backend, linear, slots
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.nbytes, self.packed = linear.nbytes, linear.packed

    def __call__(self, x: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Multiply, which no adapter changes here."""
        return self._linear(x, out, rows)

    def lookup(self, ids: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Return rows ``ids`` (T,) as (T, D), with what their adapters make of them."""
        y = self._linear.lookup(ids, out, rows)
        found = self._slots.present(rows, self._backend)
        if found is not None:
            present, changed = found
            tokens = self._backend.to_numpy(ids)
            for change, begin, end in present:
                own = changed[begin:end]
                self._change(change, tokens[own], own, y)
        return y

    def _change(self, change: AdapterChange, ids: np.ndarray, rows: np.ndarray, y: Array) -> None:
        backend = self._backend
        if change.whole is not None:
            found = change.whole.lookup(backend.from_numpy(ids))
            backend.scatter_rows(found, backend.from_numpy(rows), y)
        if change.table is not None:
            table = change.table
            x = np.zeros((y.shape[0], table.shape[1]), np.float32)
            x[rows] = HostTensor(table.name, table.dtype, table.array[ids]).float32()
            apply_changes(backend, [(change, 0, len(rows))], rows, backend.from_numpy(x), y)
