"""Ranks as threads of one process: the definition of every collective."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from quire.core.errors import RankDeadError
from quire.distributed.group import CollectiveCounts
from quire.kernels.batch.forward_batch import Array

#: Seconds that a rank waits for others: a test that hangs forever reports nothing.
SECONDS = 60.0


class _Meeting:
    """State that the threads of one group share."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=SECONDS)
        self.given: list[Any] = [None] * size
        self.changed = threading.Condition()
        self.sent: dict[tuple[int, int], deque[np.ndarray]] = {
            (a, b): deque() for a in range(size) for b in range(size)
        }


class ThreadGroup:
    """One rank; see :class:`quire.distributed.group.Group`. Created by :func:`thread_groups`."""

    name = "threads"

    def __init__(self, rank: int, size: int, meeting: _Meeting) -> None:
        self.rank, self.size, self._meeting = rank, size, meeting
        self.counts = CollectiveCounts()

    def _exchange(self, given: Any) -> list[Any]:
        """Return every rank's value once all are given; they stay until the next exchange."""
        try:
            self._meeting.given[self.rank] = given
            self._meeting.barrier.wait()
            found = list(self._meeting.given)
            self._meeting.barrier.wait()
            return found
        except threading.BrokenBarrierError:
            raise RankDeadError(f"[group] rank {self.rank}: another rank did not come.") from None

    def all_reduce(self, x: Array) -> Array:
        self.counts.add("all_reduce", x.nbytes)
        first, *others = self._exchange(x.copy())
        x[...] = first
        for other in others:
            x += other
        return x

    def all_gather_columns(self, part: Array, widths: Sequence[int], out: Array) -> Array:
        self.counts.add("all_gather_columns", out.nbytes)
        out[...] = np.concatenate(self._exchange(part.copy()), axis=1)
        return out

    def gather_columns(
        self, part: Array, widths: Sequence[int], out: Array | None, root: int = 0
    ) -> Array | None:
        self.counts.add("gather_columns", len(part) * sum(widths) * part.itemsize)
        parts = self._exchange(part.copy())
        if out is not None:
            out[...] = np.concatenate(parts, axis=1)
        return out

    def all_to_all(self, parts: Sequence[Array], out: Sequence[Array]) -> Sequence[Array]:
        self.counts.add("all_to_all", sum(part.nbytes for part in parts))
        given = self._exchange([part.copy() for part in parts])
        for target, theirs in zip(out, given, strict=True):
            target[...] = theirs[self.rank]
        return out

    def any(self, flag: bool) -> bool:
        self.counts.add("any", 1)
        return any(self._exchange(flag))

    def send(self, x: Array, rank: int) -> None:
        self.counts.add("send", x.nbytes)
        with self._meeting.changed:
            self._meeting.sent[self.rank, rank].append(x.copy())
            self._meeting.changed.notify_all()

    def recv(self, x: Array, rank: int) -> Array:
        queue = self._meeting.sent[rank, self.rank]
        with self._meeting.changed:
            if not self._meeting.changed.wait_for(lambda: queue, SECONDS):
                raise RankDeadError(f"[group] rank {rank} did not send.")
            x[...] = queue.popleft()
        return x

    def close(self) -> None:
        self._meeting.barrier.abort()


def thread_groups(size: int) -> list[ThreadGroup]:
    """Return the ranks of a group, one for each thread."""
    meeting = _Meeting(size)
    return [ThreadGroup(rank, size, meeting) for rank in range(size)]
