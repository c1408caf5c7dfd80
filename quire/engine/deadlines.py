"""Deadlines at which requests end in whatever state they are, the earliest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

#: Up to this many are kept before those of requests that have ended are dropped.
MIN_DEADLINES = 64


class Deadlines:
    """Deadlines of requests; those of ended ones leave when they are due."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(
        self, deadline: float, request_id: str, num_live: int, is_live: Callable[[str], object]
    ) -> None:
        """Add a request's deadline, in seconds on the engine's clock; ``num_live`` are alive."""
        if len(self._heap) > 2 * num_live + MIN_DEADLINES:
            # Most are of requests that ended in time, and theirs may be years away.
            self._heap = [entry for entry in self._heap if is_live(entry[1])]
            heapify(self._heap)
        heappush(self._heap, (deadline, request_id))

    def due(self, now: Callable[[], float]) -> Iterator[tuple[float, str]]:
        """Take out the deadlines that are past, with the ids of their requests."""
        while self._heap and self._heap[0][0] <= now():
            yield heappop(self._heap)
