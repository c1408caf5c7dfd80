"""States of the target that wait for a drafter, of all rows together in bounded memory.

They are kept in the order in which steps brought them, and the newest ones take the place of the
oldest: a step costs a copy and no more, whether proposals are asked for or not. S width of a state.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quire.kernels.backend import Array, Backend
from quire.kernels.batch.token_table import IntArray
from quire.speculative.drafters.draft_prefill import share
from quire.speculative.drafters.target_states import ComputedStates

Places = npt.NDArray[np.int64]


class HiddenStateBuffer:
    """A ring of states, each with the row and the position that it is of.

    Args:
        backend: The backend that keeps the states.
        size: S.
        capacity: States that there is room for.
    """

    def __init__(self, backend: Backend, size: int, capacity: int) -> None:
        self._backend = backend
        #: After those that come and go, the state of zeros and others that stay.
        self._states = backend.empty((capacity + 1, size), backend.activation_dtype)
        self._states[capacity:] = 0.0
        self._capacity = capacity
        self._positions: IntArray = np.zeros(capacity, np.int32)
        # A row of the table has a number for each sequence that it is given to.
        self._numbers = np.zeros(capacity, np.int64)
        self._own_numbers = np.zeros(0, np.int64)
        self._last_number = 0
        # Where a forked row's first states are: with others' numbers, before a certain one.
        self._parents: dict[int, tuple[tuple[int, int], ...]] = {}
        self._num_appended = 0
        # Rows and positions of the newest states, noted when states are looked up.
        self._unnoted: list[tuple[IntArray, IntArray]] = []
        self._num_unnoted = 0
        self._whole_until: dict[int, int] = {}  # of the rows: how many may come till one is lost

    def begin(self, row: int) -> None:
        """Add a row without known states."""
        self._note()
        if row >= len(self._own_numbers):
            more = np.zeros(2 * row + 16 - len(self._own_numbers), np.int64)
            self._own_numbers = np.concatenate([self._own_numbers, more])
        self._last_number += 1
        self._own_numbers[row] = self._last_number
        self._parents.pop(row, None)
        self._whole_until[row] = self._num_appended + self._capacity

    def fork(self, parent: int, child: int) -> None:
        """Add a row whose states so far are those of another one."""
        self.begin(child)
        own = int(self._own_numbers[parent]), self._num_appended
        self._parents[child] = (*self._parents.get(parent, ()), own)
        self._whole_until[child] = self._whole_until[parent]

    def has_lost(self, row: int) -> bool:
        """Return whether some of a row's states may have had to make room."""
        return self._num_appended > self._whole_until[row]

    def append(self, computed: ComputedStates) -> None:
        """Append the states of a step; of too many at once, the last ones of each row.

        Its arrays of integers are kept as they are.
        """
        rows, positions, states = computed.rows, computed.starts, computed.states
        if len(states) > min(len(rows), self._capacity):
            if len(states) > self._capacity:
                states, counts = self._cut(computed)
                positions = positions + computed.counts - counts
            else:
                counts = computed.counts
            within = np.arange(len(states), dtype=np.int32)
            before = counts.cumsum(dtype=np.int32) - counts
            positions = (positions - before).repeat(counts)
            positions += within
            rows = rows.repeat(counts)
        count, start = len(states), self._num_appended % self._capacity
        if self._num_unnoted + count > self._capacity:
            self._note()
        self._num_appended += count
        self._num_unnoted += count
        self._unnoted.append((rows, positions))
        if start + count <= self._capacity:
            self._states[start : start + count] = states
        else:
            first = self._capacity - start
            self._states[start : self._capacity] = states[:first]
            self._states[: count - first] = states[first:]

    def _note(self) -> None:
        """Note whose states the newest ones are, of which positions."""
        if self._unnoted:
            rows, positions = (np.concatenate(part) for part in zip(*self._unnoted, strict=True))
            at = np.arange(self._num_appended - len(rows), self._num_appended) % self._capacity
            self._numbers[at] = self._own_numbers[rows]
            self._positions[at] = positions
            self._unnoted.clear()
            self._num_unnoted = 0

    def find(self, row: int, first: int) -> tuple[int, Places]:
        """Return the places of a row's newest states, up to the first gap before them.

        Returns:
            The position of the first, at least ``first``, and a place for it and each after it.
        """
        self._note()
        found = np.flatnonzero(self._numbers == self._own_numbers[row])
        oldest = self._num_appended % self._capacity
        parents = self._parents.get(row, ())
        for number, end in parents:
            others = np.flatnonzero(self._numbers == number)
            age = self._num_appended - self._capacity + (others - oldest) % self._capacity
            found = np.concatenate([others[age < end], found])
        if not len(found):
            return first, found
        if parents or found[0] < oldest <= found[-1]:
            found = found[np.argsort((found - oldest) % self._capacity)]
        positions = self._positions[found]
        start, last = int(positions[0]), int(positions[-1])
        if last - start != len(found) - 1:
            begin = int(np.flatnonzero(np.diff(positions) != 1)[-1]) + 1
            found, start = found[begin:], int(positions[begin])
        skipped = max(first - start, 0)
        return start + skipped, found[skipped:]

    def read(self, places: Places) -> Array:
        """Return the states (T, S) of some places; they are valid until the next is appended."""
        backend, count = self._backend, len(places)
        if int(places[-1]) - int(places[0]) == count - 1 and (np.diff(places) == 1).all():
            return self._states[int(places[0]) : int(places[-1]) + 1]
        out = backend.empty((count, self._states.shape[1]), backend.activation_dtype)
        return backend.gather_rows(self._states, backend.from_numpy(places.astype(np.int32)), out)

    @property
    def place_of_zeros(self) -> int:
        """A place that has zeros."""
        return self._capacity

    def keep_always(self, state: Array) -> int:
        """Return the place of a further state (S,) that stays."""
        backend, place = self._backend, len(self._states)
        states = backend.empty((place + 1, self._states.shape[1]), backend.activation_dtype)
        states[:place] = self._states
        states[place] = state
        self._states = states
        return place

    def _cut(self, computed: ComputedStates) -> tuple[Array, IntArray]:
        """Return the last states of each row, as many as there is room for, and counts of them."""
        counts = share(computed.counts, self._capacity)
        ends = computed.counts.cumsum(dtype=np.int32)
        at = np.concatenate(
            [np.arange(end - own, end) for end, own in zip(ends, counts, strict=True)]
        )
        for row in computed.rows[counts < computed.counts].tolist():
            self._whole_until[row] = -1
        backend, states = self._backend, computed.states
        out = backend.empty((len(at), states.shape[1]), backend.activation_dtype)
        return backend.gather_rows(states, backend.from_numpy(at.astype(np.int32)), out), counts
