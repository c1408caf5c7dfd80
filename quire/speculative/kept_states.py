"""States of the target that wait for a drafter, of all rows together in bounded memory.

They wait as long as nobody asks for proposals: a request that gets none costs a copy of its states
and no more. S width of a state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.kernels.backend import Array, Backend
from quire.kernels.token_table import IntArray


class KeptStates:
    """A pool of states, out of which each row of the token table has a list.

    Args:
        backend: Where they are kept.
        size: S.
        capacity: States that there is room for, besides a state of zeros.

    Attributes:
        places: Of each row that has some, its states in order; 0 is the state of zeros.
    """

    def __init__(self, backend: Backend, size: int, capacity: int) -> None:
        self._backend = backend
        self._pool = backend.empty((capacity + 1, size), backend.activation_dtype)
        self._pool[:1] = 0.0
        self._free = list(range(capacity, 0, -1))
        self.capacity = capacity
        self.places: dict[int, list[int]] = {}

    @property
    def num_free(self) -> int:
        """States that there is room for."""
        return len(self._free)

    def append_zeros(self, row: int) -> None:
        """Append a state of zeros, which takes no room."""
        self.places.setdefault(row, []).append(0)

    def append_each(self, rows: Sequence[int]) -> list[int]:
        """Append room for a state to each of ``rows``, which have some; return the places."""
        start = len(self._free) - len(rows)
        taken = self._free[start:]
        del self._free[start:]
        places = self.places
        for row, place in zip(rows, taken, strict=True):
            places[row].append(place)
        return taken

    def append(self, row: int, count: int) -> list[int]:
        """Append room for ``count`` states, which there must be; return their places."""
        taken = [self._free.pop() for _ in range(count)]
        self.places.setdefault(row, []).extend(taken)
        return taken

    def write(self, states: Array, indices: Sequence[int], places: list[int]) -> None:
        """Copy some rows of ``states`` (T, S) to places."""
        backend, part = self._backend, states
        if len(indices) < len(states):
            part = backend.empty((len(indices), states.shape[1]), backend.activation_dtype)
            backend.gather_rows(states, backend.from_numpy(np.array(indices, np.int32)), part)
        backend.scatter_rows(part, backend.from_numpy(np.array(places, np.int32)), self._pool)

    def read(self, places: list[int]) -> Array:
        """Return a copy (T, S) of what is kept."""
        backend = self._backend
        out = backend.empty((len(places), self._pool.shape[1]), backend.activation_dtype)
        at: IntArray = np.array(places, np.int32)
        return backend.gather_rows(self._pool, backend.from_numpy(at), out)

    def drop(self, row: int, count: int) -> None:
        """Let go of the first ``count`` states of a row."""
        kept = self.places.get(row, [])
        self._free += [place for place in kept[:count] if place]
        del kept[:count]

    def forget(self, row: int) -> None:
        """Let go of all states of a row."""
        self._free += [place for place in self.places.pop(row, []) if place]
