"""The gate for adapters: requests start when their adapters are in memory and a place is free.

A request waits alone for its adapter: those without one, or with one that is there, pass it. When
all places are taken, the oldest request that waits for a place gets the next one, and no younger
request with an adapter starts before it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence, Set
from typing import Protocol

from quire.core.adapter_reference import AdapterReference
from quire.core.errors import RequestFailure
from quire.core.metrics import Samples
from quire.engine.gates.gates import Queue
from quire.engine.request import Request, RequestStatus

#: How long a step waits for an adapter when there is nothing else to do.
LOADING_SECONDS = 0.005
_NOT_IN_LABELS = re.compile(r'["\\\n{}]')


class Adapters(Protocol):
    """Adapters in memory, by the hash of their content; execution has them."""

    def is_ready(self, adapter: AdapterReference) -> bool:
        """Return whether an adapter is in memory."""
        ...

    def load(self, adapter: AdapterReference, kept: Set[str]) -> None:
        """Begin to read an adapter, unless one is being read; others than ``kept`` may go."""
        ...

    def collect(self) -> dict[str, RequestFailure]:
        """Take in what has been read; return failures of others, by content hash."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait until the adapter that is being read is there, at most that long."""
        ...


class AdapterGate:
    """Holds requests back until their adapters are in memory.

    Args:
        adapters: The executor's adapters.
        max_loras: Number of different adapters among running requests, at most.

    Attributes:
        adapters: The executor's adapters.
    """

    def __init__(self, adapters: Adapters, max_loras: int) -> None:
        self.adapters = adapters
        self._max_loras = max_loras
        self._held: list[Request] = []
        self._reserved: set[str] = set()  # for those that wait, by their age
        self._first_without_place: tuple[float, int, int] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether requests are held back."""
        return bool(self._held)

    def holds(self, request: Request, queue: Queue) -> bool:
        """Return whether a queued request cannot start yet."""
        adapter = request.source.adapter
        if adapter is None or self._may_start(request, adapter, queue.running):
            return False
        self._held.append(request)
        return True

    def step_begins(self, queue: Queue) -> list[tuple[Request, RequestFailure]]:
        """Queue those that may start now, and begin to read what is needed next.

        Returns:
            Requests whose adapter cannot be read, with their failures; they are not held any more.
        """
        failures = self.adapters.collect()
        self._held = [r for r in self._held if r.status is RequestStatus.WAITING_FOR_KV]
        failed = [(r, failures[_key(r)]) for r in self._held if _key(r) in failures]
        self._held = sorted(
            (r for r in self._held if _key(r) not in failures), key=lambda request: request.order
        )
        places = _in_use(queue.running)
        self._first_without_place = None
        still_held: list[Request] = []
        for request in self._held:
            adapter = request.source.adapter
            assert adapter is not None, request.request_id
            key, no_place = adapter.content_hash, self._first_without_place is not None
            if not no_place and (key in places or len(places) < self._max_loras):
                places.add(key)
                if self.adapters.is_ready(adapter):
                    queue.release(request)
                    continue
                self.adapters.load(adapter, places)
            elif not no_place:
                self._first_without_place = request.order
            still_held.append(request)
        self._held, self._reserved = still_held, places
        return failed

    def wait(self, seconds: float) -> None:
        """Wait for an adapter that requests are held for, at most that long."""
        if self._held:
            self.adapters.wait(seconds)

    def samples(self, running: Sequence[Request]) -> Samples:
        """Return who runs and who waits, by vLLM's metric: names as labels, the time as value."""
        labels = {
            "max_lora": str(self._max_loras),
            "running_lora_adapters": _names(running),
            "waiting_lora_adapters": _names(self._held),
        }
        shown = ",".join(f'{key}="{value}"' for key, value in labels.items())
        return {f"lora_requests_info{{{shown}}}": time.time()}

    def _may_start(
        self, request: Request, adapter: AdapterReference, running: Sequence[Request]
    ) -> bool:
        first = self._first_without_place
        if not self.adapters.is_ready(adapter) or (first is not None and request.order > first):
            return False
        self._reserved |= _in_use(running)
        if adapter.content_hash not in self._reserved:
            if len(self._reserved) >= self._max_loras:
                return False
            self._reserved.add(adapter.content_hash)
        return True


def _key(request: Request) -> str:
    assert request.source.adapter is not None, request.request_id
    return request.source.adapter.content_hash


def _in_use(running: Sequence[Request]) -> set[str]:
    return {r.source.adapter.content_hash for r in running if r.source.adapter is not None}


def _names(requests: Sequence[Request]) -> str:
    names = {r.source.adapter.name for r in requests if r.source.adapter is not None}
    return ",".join(_NOT_IN_LABELS.sub("_", name) for name in sorted(names))
