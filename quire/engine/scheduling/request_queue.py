"""Waiting requests in the order they should start; it decides nothing about blocks or budgets."""

from __future__ import annotations

from heapq import heappop, heappush

from quire.engine.request import Request

#: One level of priority is worth this much waiting: a request is overtaken by those of a priority
#: ``p`` levels better only while they arrive within ``p`` times this of it. No request starves.
AGEING_SECONDS = 10.0
#: Seconds that a request waits longer for each one of the same call before it, where time decides.
PLACE_SECONDS = 1.0


def arrival_order(
    policy: str, priority: int, arrival_time: float, number: int, place: int = 0
) -> float:
    """Return the leading sort key of a request, least first.

    All waiting requests age at the same rate, so ageing never changes their order: the key is
    fixed at arrival.

    Args:
        policy: The scheduling policy, ``fcfs`` or ``priority``.
        priority: The request's priority, lower first; ignored by ``fcfs``.
        arrival_time: Seconds on the engine's clock.
        number: Count of calls before this one.
        place: Count of requests of the same call before it. The second one stands with the call
            that comes next, the third one with the one after that.
    """
    if policy == "fcfs":
        return float(number + place)
    return arrival_time + priority * AGEING_SECONDS + place * PLACE_SECONDS


class RequestQueue:
    """A priority queue by ``Request.order``.

    A preempted request returns to its old place, which is ahead of everything that came later.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, int, int], Request]] = []
        self._waiting: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request: Request) -> bool:
        return self._waiting.get(request.request_id) is request

    def push(self, request: Request) -> None:
        """Add a request."""
        self._waiting[request.request_id] = request
        heappush(self._heap, (request.order, request))

    def peek(self) -> Request | None:
        """Return the request that starts next, or None when nothing waits."""
        while self._heap:
            request = self._heap[0][1]
            if request in self:
                return request
            heappop(self._heap)
        return None

    def remove(self, request: Request) -> None:
        """Take a request out wherever it stands (its heap entry is dropped when it surfaces)."""
        del self._waiting[request.request_id]
