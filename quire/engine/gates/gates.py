"""Gates that hold a queued request until what it needs besides room is there; others pass it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quire.engine.cache.kv_cache_manager import KVCacheManager
from quire.engine.cache.retained_blocks import RetainedBlocks
from quire.engine.request import Request
from quire.engine.scheduling.fair_queue import FairQueue
from quire.engine.scheduling.prefill_policy import PrefillPolicy
from quire.engine.stats import EngineStats


class Queue(Protocol):
    """The scheduler, as far as gates need it."""

    kv: KVCacheManager
    kept: RetainedBlocks
    prefill: PrefillPolicy
    stats: EngineStats
    waiting: FairQueue
    running: list[Request]

    def hold(self, request: Request) -> None:
        """Keep a queued request from starting until :meth:`release`."""
        ...

    def release(self, request: Request) -> None:
        """Queue a request that was held."""
        ...


class Gate(Protocol):
    """Holds requests until something that they need is there; a request may have several."""

    @property
    def is_waiting(self) -> bool:
        """Whether requests are held."""
        ...

    def holds(self, request: Request, queue: Queue) -> bool:
        """Return whether a queued request cannot start yet: the gate will release it."""
        ...


def next_request(gates: Sequence[Gate], queue: Queue) -> Request | None:
    """Return the first request of a queue that may start; those before it are held."""
    while (request := queue.waiting.peek()) is not None:
        if not any(gate.holds(request, queue) for gate in gates):
            return request
        queue.hold(request)
    return None
