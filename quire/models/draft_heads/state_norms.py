"""Norms of the states that a head reads of its target, before its first matrix.

T positions, C captured layers, D model dim of the target, S = C D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quire.kernels.backend import Array, Backend
from quire.layers.norm import Norm


@dataclass(frozen=True, slots=True)
class StateNorms:
    """Norms of as many equal parts of a state: one over all of S, or one for each captured layer.

    Attributes:
        norms: One norm over S, or C norms over D.
        backend: The backend of the states.
    """

    norms: Sequence[Norm]
    backend: Backend

    def __call__(self, states: Array) -> Array:
        """Return (T, S) of (T, S), which stay as they are."""
        backend, (num_states, size), count = self.backend, states.shape, len(self.norms)
        dtype = backend.activation_dtype
        out = backend.empty((num_states * count, size // count), dtype)
        part = backend.empty((num_states, size // count), dtype)
        parts = states.reshape(num_states * count, size // count)
        for place, norm in enumerate(self.norms):
            rows = np.arange(place, num_states * count, count, dtype=np.int32)
            at = backend.from_numpy(rows)
            norm(backend.gather_rows(parts, at, part), part)
            backend.scatter_rows(part, at, out)
        return out.reshape(num_states, size)
