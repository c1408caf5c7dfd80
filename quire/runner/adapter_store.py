"""Adapters in memory: read in a thread of their own, the least recently used given up for others.

Which one is needed, and when, is the engine's business; see :class:`quire.engine.adapter_gate`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from quire.core.adapter_options import AdapterOptions
from quire.core.adapters import AdapterReference
from quire.core.errors import ModelLoadError, QuireError
from quire.core.log import get_logger
from quire.core.metrics import Samples
from quire.kernels.backend import Backend
from quire.models.adapters.base_weights import BaseWeights
from quire.models.adapters.matching import check_adapter
from quire.models.adapters.peft_folder import hash_adapter, read_adapter
from quire.models.adapters.placement import (
    PlacedAdapter,
    largest_adapter_bytes,
    place_adapter,
)
from quire.models.model import Model

log = get_logger(__name__)

#: How far the thread that reads steps back where compute threads want its core.
NICENESS = 5


def create_adapter_store(
    decoder: Model, backend: Backend, options: AdapterOptions, path: Path
) -> AdapterStore | None:
    """Return what holds a decoder's adapters; None where it takes none.

    Args:
        decoder: Takes them.
        backend: Holds them.
        options: How many, and how large.
        path: The decoder's checkpoint.
    """
    if not options.enable_lora:
        return None
    base = BaseWeights(path)
    return AdapterStore(decoder, backend, options.max_lora_rank, options.num_held, base)


@dataclass(slots=True)
class HeldAdapter:
    """An adapter in memory.

    Attributes:
        placed: Its matrices.
        slot: By which rows of a step name it; at least 1.
    """

    placed: PlacedAdapter
    slot: int


class AdapterStore:
    """Adapters of a decoder, by the hash of their content.

    Args:
        decoder: Takes adapters.
        backend: Holds them.
        max_rank: Largest rank.
        num_held: The budget, in adapters of the largest rank for all linears but experts'.
        base: The decoder's checkpoint.

    Attributes:
        budget_bytes: Most memory of all adapters.
        largest_bytes: Of one.
    """

    def __init__(
        self, decoder: Model, backend: Backend, max_rank: int, num_held: int, base: BaseWeights
    ) -> None:
        self._adapted, self._backend, self._base = decoder.adapted, backend, base
        self._places = [slots.place for slots in decoder.adapted]
        self._max_rank = max_rank
        self.largest_bytes = largest_adapter_bytes(self._places, max_rank)
        self.budget_bytes = num_held * self.largest_bytes
        self._held: OrderedDict[str, HeldAdapter] = OrderedDict()  # least recently used first
        self._free_slots: list[int] = []
        self._num_slots = 0
        self._thread = ThreadPoolExecutor(1, "quire-adapters", _step_back)
        self._loading: tuple[AdapterReference, Future[PlacedAdapter]] | None = None
        self._failures: dict[str, str] = {}
        self._num_loads = self._num_evictions = 0

    @property
    def nbytes(self) -> int:
        """Memory of the adapters that are held."""
        return sum(held.placed.nbytes for held in self._held.values())

    def is_ready(self, adapter: AdapterReference) -> bool:
        """Return whether an adapter is in memory."""
        return adapter.content_hash in self._held

    def slot(self, content_hash: str) -> int:
        """Return the slot of an adapter that is in memory; it is the one used last."""
        self._held.move_to_end(content_hash)
        return self._held[content_hash].slot

    def load(self, adapter: AdapterReference, kept: Set[str]) -> None:
        """Begin to read an adapter, unless one is being read.

        Args:
            adapter: Not in memory.
            kept: Content hashes of those that stay, fewer than the budget holds.
        """
        if self._loading is not None:
            return
        needed = self.largest_bytes + adapter.extra_bytes
        names = [name for name in self._held if name not in kept]
        while self.nbytes + needed > self.budget_bytes and names:
            self._evict(names.pop(0))
        if self.nbytes + needed > self.budget_bytes:
            # Others in use may end, if they are why.
            if not self._held:
                self._failures[adapter.content_hash] = (
                    f"[adapter] {adapter.path} must fit in the memory of adapters "
                    f"({self.budget_bytes} bytes); it needs up to {needed}, for experts or "
                    f"modules_to_save. Set --max-cpu-loras {-(-needed // self.largest_bytes)}."
                )
            return
        self._loading = adapter, self._thread.submit(self._read, adapter)

    def collect(self) -> dict[str, str]:
        """Take in what has been read; return why others could not be, by content hash."""
        if self._loading is not None and self._loading[1].done():
            (adapter, future), self._loading = self._loading, None
            error = future.exception()
            if error is None:
                self._hold(adapter, future.result())
            else:
                if not isinstance(error, QuireError):
                    log.error("[adapter] reading %s failed", adapter.path, exc_info=error)
                self._failures[adapter.content_hash] = str(error)
        failures, self._failures = self._failures, {}
        return failures

    def wait(self, seconds: float) -> None:
        """Wait until the adapter that is being read is there, at most that long."""
        if self._loading is not None:
            wait([self._loading[1]], seconds)

    def samples(self) -> Samples:
        """Return what it has done and holds, by metric stem."""
        return {
            'memory_bytes{pool="adapters"}': self.budget_bytes,
            "lora_adapters": len(self._held),
            "lora_adapter_bytes": self.nbytes,
            "lora_adapter_loads": self._num_loads,
            "lora_adapter_evictions": self._num_evictions,
        }

    def close(self) -> None:
        """Wait for what is being read, and let go of all."""
        self._thread.shutdown(cancel_futures=True)
        for name in list(self._held):
            self._evict(name)

    def _read(self, adapter: AdapterReference) -> PlacedAdapter:
        """Read an adapter, in the thread.

        Raises:
            ModelLoadError: It cannot be read, or is not what it was.
        """
        if hash_adapter(adapter.path) != adapter.content_hash:
            raise ModelLoadError(
                f"[adapter] {adapter.path} must be as it was when {adapter.name} was registered; "
                "its files have changed. Load the adapter again."
            )
        read = read_adapter(adapter.path)
        check_adapter(read, self._places, self._max_rank)
        return place_adapter(read, self._adapted, self._backend, self._base)

    def _hold(self, adapter: AdapterReference, placed: PlacedAdapter) -> None:
        if not self._free_slots:
            self._num_slots += 1
            self._free_slots.append(self._num_slots)
        slot = self._free_slots.pop()
        placed.set(slot)
        self._held[adapter.content_hash] = HeldAdapter(placed, slot)
        self._num_loads += 1
        log.debug("adapter %s is in memory: %d bytes", adapter.name, placed.nbytes)

    def _evict(self, content_hash: str) -> None:
        held = self._held.pop(content_hash)
        held.placed.clear(held.slot)
        self._free_slots.append(held.slot)
        self._num_evictions += 1


def _step_back() -> None:
    """Have this thread alone run where others leave a core; not everywhere can threads do so."""
    if sys.platform == "linux":
        thread_id = threading.get_native_id()
        with suppress(OSError):
            own = os.getpriority(os.PRIO_PROCESS, thread_id)
            os.setpriority(os.PRIO_PROCESS, thread_id, min(19, own + NICENESS))
