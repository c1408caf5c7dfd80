"""The waiting queue of many clients: the one that has had least goes first; it knows no blocks.

Virtual token counters, after Sheng et al. 2024 (*Fairness in Serving Large Language Models*): each
client's counter grows with the tokens computed for it, divided by its weight, and the next request
is taken from the client whose counter is least. Two clients that always have requests waiting are
served alike within a bound given by the running batch, whatever the sizes of their requests. A
client that comes back after a pause is lifted to the others: what it did not use is not saved up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from quire.core.client import Client
from quire.engine.request import Request, RequestStatus
from quire.engine.scheduling.lazy_heap import LazyHeap
from quire.engine.scheduling.request_queue import AGEING_SECONDS, RequestQueue

#: An output token costs a step of its own, a prompt token shares one with many others.
PROMPT_TOKEN_COST = 1.0
OUTPUT_TOKEN_COST = 2.0
#: Counters of clients without requests are kept up to this many.
MAX_IDLE_CLIENTS = 4096


class FairQueue:
    """A queue of queues, one per client; with one client it is that client's queue.

    Requests of one client start in the order of :class:`RequestQueue`. Between clients a better
    priority goes first, and one level is worth :data:`AGEING_SECONDS` of waiting, up to the best
    level that waits; then what was preempted, which has been paid for; then the least counter.

    Args:
        clock: The engine's monotonic clock, in seconds.

    Attributes:
        served: Cost of the tokens computed for each client, divided by its weight, counted from
            where the client was lifted to; by client id.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queues: dict[str, RequestQueue] = {}  # that are not empty
        self._priorities: Counter[int] = Counter()  # of all that wait
        self._size = 0
        self._last_left = ""  # the client whose queue became empty last
        self.served: dict[str, float] = {}
        self._ranks = LazyHeap(self._rank)  # of clients whose requests have one priority
        self._counters = LazyHeap(lambda name: self.served[name] if name in self._queues else None)

    def __len__(self) -> int:
        return self._size

    def __contains__(self, request: Request) -> bool:
        queue = self._queues.get(request.source.client.client_id)
        return queue is not None and request in queue

    def push(self, request: Request) -> None:
        """Add a request."""
        client_id = request.source.client.client_id
        queue = self._queues.get(client_id)
        if queue is None:
            self._lift(client_id)
            queue = self._queues[client_id] = RequestQueue()
            self._counters.push(client_id)
        queue.push(request)
        self._priorities[request.priority] += 1
        self._size += 1
        self._ranks.push(client_id)

    def peek(self) -> Request | None:
        """Return the request that starts next, or None when nothing waits.

        Another call may return another one: they age meanwhile.
        """
        if len(self._priorities) > 1:
            return self._of_priorities()
        client_id = self._ranks.first()
        return None if client_id is None else self._queues[client_id].peek()

    def remove(self, request: Request) -> None:
        """Take a request out wherever it stands."""
        client_id = request.source.client.client_id
        queue = self._queues[client_id]
        queue.remove(request)
        self._size -= 1
        self._priorities[request.priority] -= 1
        if not self._priorities[request.priority]:
            del self._priorities[request.priority]
        if not len(queue):
            del self._queues[client_id]
            self._last_left = client_id
        self._ranks.push(client_id)  # its next request may go before others, unlike this one

    def charge(self, client: Client, cost: float) -> None:
        """Count what was computed for a client."""
        client_id = client.client_id
        if client_id not in self.served:  # forgotten while its requests ran
            self.served[client_id] = self._floor()
        self.served[client_id] += cost / client.weight

    def _rank(self, client_id: str) -> tuple[bool, float, tuple[float, int, int]] | None:
        """Return the sort key of a client among those of one priority; it grows while it waits."""
        queue = self._queues.get(client_id)
        head = None if queue is None else queue.peek()
        if head is None:
            return None
        fresh = head.status is not RequestStatus.PREEMPTED
        return fresh, self.served[client_id] if fresh else 0.0, head.order

    def _of_priorities(self) -> Request:
        """Return the request that starts next, of several priorities: these age."""
        heads = [head for queue in self._queues.values() if (head := queue.peek()) is not None]
        best, now = min(head.priority for head in heads), self._clock()

        def rank(head: Request) -> tuple[float, bool, float, tuple[float, int, int]]:
            level = best
            if head.priority > best:
                waited = now - head.metrics.arrival_time
                level = max(best, head.priority - int(waited / AGEING_SECONDS))
            key = self._rank(head.source.client.client_id)
            assert key is not None, f"{head.request_id} waits"
            return level, *key

        return min(heads, key=rank)

    def _lift(self, client_id: str) -> None:
        """Raise the counter of a client that joins to where the others are."""
        floor = self._floor()
        if client_id not in self.served and len(self.served) >= MAX_IDLE_CLIENTS:
            self._forget_idle()
        self.served[client_id] = max(self.served.get(client_id, floor), floor)

    def _floor(self) -> float:
        """Return the least counter of the clients that wait, or that of the last that did."""
        least = self._counters.first()
        return self.served.get(self._last_left if least is None else least, 0.0)

    def _forget_idle(self) -> None:
        """Drop the smaller half of the counters: lifting brings most of them back anyhow."""
        kept = {*self._queues, self._last_left}
        idle = sorted((s, name) for name, s in self.served.items() if name not in kept)
        for _, name in idle[: (len(idle) + 1) // 2]:
            del self.served[name]
