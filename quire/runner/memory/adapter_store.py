"""Adapters in memory: read in a thread of their own, the least recently used evicted for others.

The engine decides which adapter is needed, and when; see :class:`quire.engine.gates.adapter_gate`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol

from quire.core.adapter_reference import AdapterReference
from quire.core.errors import FailureKind, QuireError, RequestFailure
from quire.core.metrics import Samples
from quire.models.adapters.adapter_placement import PlacedAdapter
from quire.runner.memory.adapter_placing import AdapterReader
from quire.system.background_thread import step_back
from quire.system.log import get_logger

log = get_logger(__name__)


class OtherRanks(Protocol):
    """The other ranks that must have an adapter before rows use it."""

    def read(self, adapter: AdapterReference) -> None:
        """Tell the ranks to begin reading an adapter."""
        ...

    def set(self, content_hash: str, slot: int) -> None:
        """Tell the ranks to put an adapter into use once they have read it."""
        ...

    def clear(self, slot: int) -> None:
        """Tell the ranks to release the adapter of a slot."""
        ...


class NoOtherRanks:
    """The other ranks of a model in one process; see :class:`OtherRanks`."""

    def read(self, adapter: AdapterReference) -> None:
        """Do nothing: there is no other rank."""

    def set(self, content_hash: str, slot: int) -> None:
        """Do nothing: there is no other rank."""

    def clear(self, slot: int) -> None:
        """Do nothing: there is no other rank."""


@dataclass(slots=True)
class HeldAdapter:
    """An adapter in memory.

    Attributes:
        placed: The adapter's matrices.
        slot: Number by which rows of a step name the adapter; at least 1.
    """

    placed: PlacedAdapter
    slot: int


class AdapterStore:
    """Adapters of a decoder, by the hash of their content.

    Args:
        reader: Reader of the decoder's adapters.
        num_held: The budget, in adapters of the largest rank for all linears but experts'.
        others: The ranks with the other parts of the decoder; None for none.

    Attributes:
        budget_bytes: Bytes of all adapters, at most.
        largest_bytes: Bytes of one such adapter.
    """

    def __init__(
        self, reader: AdapterReader, num_held: int, others: OtherRanks | None = None
    ) -> None:
        self._reader, self._others = reader, others or NoOtherRanks()
        self.largest_bytes = reader.largest_bytes
        self.budget_bytes = num_held * self.largest_bytes
        self._held: OrderedDict[str, HeldAdapter] = OrderedDict()  # least recently used first
        self._free_slots: list[int] = []
        self._num_slots = 0
        self._thread = ThreadPoolExecutor(1, "quire-adapters", step_back)
        self._loading: tuple[AdapterReference, Future[PlacedAdapter]] | None = None
        self._failures: dict[str, RequestFailure] = {}
        self._num_loads = self._num_evictions = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the adapters that are held."""
        return sum(held.placed.nbytes for held in self._held.values())

    def is_ready(self, adapter: AdapterReference) -> bool:
        """Return whether an adapter is in memory."""
        return adapter.content_hash in self._held

    def slot(self, content_hash: str) -> int:
        """Return the slot of an adapter that is in memory, and record its use."""
        self._held.move_to_end(content_hash)
        return self._held[content_hash].slot

    def load(self, adapter: AdapterReference, kept: Set[str]) -> None:
        """Begin to read an adapter, unless one is being read.

        Args:
            adapter: An adapter that is not in memory.
            kept: Content hashes of the adapters that must stay, fewer than the budget holds.
        """
        if self._loading is not None:
            return
        needed = self.largest_bytes + adapter.extra_bytes
        names = [name for name in self._held if name not in kept]
        while self.nbytes + needed > self.budget_bytes and names:
            self._evict(names.pop(0))
        if self.nbytes + needed > self.budget_bytes:
            # Adapters in use may be what takes the memory, and their requests may end.
            if not self._held:
                self._failures[adapter.content_hash] = RequestFailure(
                    FailureKind.ENGINE,
                    f"[adapter] {adapter.path} must fit in the memory of adapters "
                    f"({self.budget_bytes} bytes); it needs up to {needed}, for experts or "
                    f"modules_to_save. Set --max-cpu-loras {-(-needed // self.largest_bytes)}.",
                )
            return
        self._others.read(adapter)
        self._loading = adapter, self._thread.submit(self._reader.read, adapter)

    def collect(self) -> dict[str, RequestFailure]:
        """Take in the adapter that was read; return failures of others, by content hash."""
        if self._loading is not None and self._loading[1].done():
            (adapter, future), self._loading = self._loading, None
            error = future.exception()
            if error is None:
                self._hold(adapter, future.result())
            else:
                if not isinstance(error, QuireError):
                    log.error("[adapter] reading %s failed", adapter.path, exc_info=error)
                failure = RequestFailure(FailureKind.ENGINE, str(error))
                self._failures[adapter.content_hash] = failure
        failures, self._failures = self._failures, {}
        return failures

    def wait(self, seconds: float) -> None:
        """Wait until the adapter that is being read is there, at most ``seconds``."""
        if self._loading is not None:
            wait([self._loading[1]], seconds)

    def samples(self) -> Samples:
        """Return the memory, number, loads and evictions of adapters, by metric stem."""
        return {
            'memory_bytes{pool="adapters"}': self.budget_bytes,
            "lora_adapters": len(self._held),
            "lora_adapter_bytes": self.nbytes,
            "lora_adapter_loads": self._num_loads,
            "lora_adapter_evictions": self._num_evictions,
        }

    def close(self) -> None:
        """Wait for the adapter that is being read, and release all."""
        self._thread.shutdown(cancel_futures=True)
        for name in list(self._held):
            self._evict(name)

    def _hold(self, adapter: AdapterReference, placed: PlacedAdapter) -> None:
        if not self._free_slots:
            self._num_slots += 1
            self._free_slots.append(self._num_slots)
        slot = self._free_slots.pop()
        placed.set(slot)
        self._others.set(adapter.content_hash, slot)
        self._held[adapter.content_hash] = HeldAdapter(placed, slot)
        self._num_loads += 1
        log.debug("adapter %s is in memory: %d bytes", adapter.name, placed.nbytes)

    def _evict(self, content_hash: str) -> None:
        held = self._held.pop(content_hash)
        held.placed.clear(held.slot)
        self._others.clear(held.slot)
        self._free_slots.append(held.slot)
        self._num_evictions += 1


class NoAdapters:
    """The adapters of an engine whose requests may have none."""

    def slot(self, content_hash: str) -> int:
        """Refuse: the engine lets no request with an adapter start."""
        raise AssertionError("a request with an adapter and no store of them")

    def samples(self) -> Samples:
        """Return no counters."""
        return {}

    def close(self) -> None:
        """Do nothing: there is no thread."""
