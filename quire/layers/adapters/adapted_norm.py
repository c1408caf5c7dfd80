"""A norm whose bias adapters may replace; rows without one keep their bits."""

from __future__ import annotations

from quire.kernels.backend import Array, Backend
from quire.kernels.batch.forward_batch import BatchRows
from quire.layers.adapters.adapter_slots import AdapterSlots, apply_changes
from quire.layers.norm import Norm


class AdaptedNorm:
    """A norm that adapters may be added to.

    Args:
        backend: The backend that computes.
        norm: The norm without adapters.
        slots: The adapters' replacements of its bias.
    """

    def __init__(self, backend: Backend, norm: Norm, slots: AdapterSlots) -> None:
        self._backend, self._norm, self._slots = backend, norm, slots

    def __call__(
        self, x: Array, out: Array, residual: Array | None = None, rows: BatchRows | None = None
    ) -> Array:
        """Write the norm of ``x``, or of ``residual += x``, to ``out``."""
        y = self._norm(x, out, residual, rows)
        found = self._slots.present(rows, self._backend)
        if found is not None:
            apply_changes(self._backend, *found, x, y)
        return y
