"""A linear to which each row's adapter adds its own; rows without one keep their bits.

T rows.
"""

from __future__ import annotations

from quire.kernels.backend import Array, Backend, Linear
from quire.kernels.batch.forward_batch import BatchRows
from quire.layers.adapters.adapter_slots import AdapterSlots, apply_changes


class AdaptedLinear:
    """A linear of a model that adapters may be added to; see ``kernels/low_rank.py``.

    Args:
        backend: The backend that computes.
        linear: The linear without adapters.
        slots: The adapters' changes of its outputs.
    """

    def __init__(self, backend: Backend, linear: Linear, slots: AdapterSlots) -> None:
        self._backend, self._linear, self._slots = backend, linear, slots
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.nbytes, self.packed = linear.nbytes, linear.packed

    def __call__(self, x: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Multiply (T, in_features) to (T, out_features), and add what the rows' adapters do."""
        y, backend = self._linear(x, out, rows), self._backend
        found = self._slots.present(rows, backend)
        if found is None:
            return y
        present, changed = found
        for change, begin, end in present:
            if change.whole is not None:
                own = backend.from_numpy(changed[begin:end])
                given = backend.gather_rows(x, own, backend.empty((end - begin, x.shape[1])))
                backend.scatter_rows(change.whole(given), own, y)
        apply_changes(backend, present, changed, x, y)
        return y

    def lookup(self, ids: Array, out: Array | None = None, rows: BatchRows | None = None) -> Array:
        """Return the linear's rows, which no adapter changes."""
        return self._linear.lookup(ids, out, rows)
