"""A ring of states against lists of all that was ever appended."""

from __future__ import annotations

import numpy as np
import pytest

from quire.kernels.registry import create_backend
from quire.speculative.drafters.hidden_state_buffer import HiddenStateBuffer
from quire.speculative.drafters.target_states import ComputedStates

SIZE, CAPACITY, ROWS = 3, 40, 5


class PlainLog:
    """The same, without a ring: every state that was appended, with its row's sequence."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, float]] = []
        self.owners: dict[int, set[int]] = {}  # of which entries a row is, by their index

    def begin(self, row: int) -> None:
        self.owners[row] = set()

    def fork(self, parent: int, child: int) -> None:
        self.owners[child] = set(self.owners[parent])

    def append(self, row: int, position: int, value: float) -> None:
        self.owners[row].add(len(self.entries))
        self.entries.append((row, position, value))

    def find(self, row: int, first: int) -> dict[int, float]:
        oldest = len(self.entries) - CAPACITY
        kept = [self.entries[i] for i in sorted(self.owners[row]) if i >= oldest]
        return {position: value for _, position, value in kept if position >= first}


@pytest.mark.parametrize("seed", range(20))
def test_finds_what_is_kept_of_a_row(seed: int, device: str) -> None:
    rng = np.random.default_rng(seed)
    backend = create_backend(device, threads=1)
    log, plain = HiddenStateBuffer(backend, SIZE, CAPACITY), PlainLog()
    ends = dict.fromkeys(range(ROWS), 0)
    value = 1.0
    for row in range(ROWS):
        log.begin(row)
        plain.begin(row)
    for _ in range(120):
        kind = rng.random()
        if kind < 0.05:
            row = int(rng.integers(ROWS))
            ends[row] = int(rng.integers(30))  # a prefix was found in a cache
            log.begin(row)
            plain.begin(row)
        elif kind < 0.12:
            parent, child = (int(n) for n in rng.permutation(ROWS)[:2])
            ends[child] = ends[parent]
            log.fork(parent, child)
            plain.fork(parent, child)
        rows = rng.permutation(ROWS)[: rng.integers(1, ROWS + 1)].astype(np.int32)
        many = rng.random() < 0.4
        counts = (rng.integers(1, 8, len(rows)) if many else np.ones(len(rows))).astype(np.int32)
        starts = np.array([ends[row] for row in rows.tolist()], np.int32)
        states = []
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            for _ in range(count):
                plain.append(row, ends[row], value)
                states.append([value] * SIZE)
                ends[row] += 1
                value += 1.0
        told = backend.from_numpy(np.array(states, np.float32))
        log.append(ComputedStates(rows, starts, counts, told))
        for row in range(ROWS):
            first = max(0, ends[row] - int(rng.integers(1, 50)))
            want = plain.find(row, first)
            start, places = log.find(row, first)
            assert list(range(start, start + len(places))) == list(want)
            if want:
                expected = np.array(list(want.values()), np.float32)
                found = backend.to_numpy(log.read(places))
                np.testing.assert_array_equal(found, np.repeat(expected[:, None], SIZE, 1))
            lost = any(i < len(plain.entries) - CAPACITY for i in plain.owners[row])
            assert log.has_lost(row) or not lost


def test_of_too_many_states_each_row_keeps_its_last(device: str) -> None:
    backend = create_backend(device, threads=1)
    log = HiddenStateBuffer(backend, SIZE, CAPACITY)
    for row in (0, 1):
        log.begin(row)
    counts = np.array([60, 5], np.int32)
    values = np.repeat(np.arange(65, dtype=np.float32)[:, None], SIZE, 1)
    told = backend.from_numpy(values)
    rows, starts = np.array([0, 1], np.int32), np.array([0, 7], np.int32)
    log.append(ComputedStates(rows, starts, counts, told))
    assert log.find(0, 0)[0] == 25 and log.has_lost(0)
    assert log.find(1, 0)[0] == 7 and not log.has_lost(1)
    start, places = log.find(0, 58)
    assert (start, len(places)) == (58, 2)
    np.testing.assert_array_equal(backend.to_numpy(log.read(places))[:, 0], [58.0, 59.0])
