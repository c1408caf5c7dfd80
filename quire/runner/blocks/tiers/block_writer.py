"""Writer of blocks to one tier in a thread; those beyond its queue are dropped and counted."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

from quire.runner.blocks.tiers.sealed_block import Bytes
from quire.runner.blocks.tiers.slow_tier import SlowTier
from quire.runner.blocks.tiers.traffic import Traffic
from quire.system.background_thread import LAST_SECONDS, step_back
from quire.system.log import get_logger

log = get_logger(__name__)


class BlockWriter:
    """Blocks on their way to a tier.

    Args:
        tier: A writable tier.
        most_queued: Blocks that wait, at most.
        traffic: The tier's counters.

    Attributes:
        num_dropped: Blocks for which there was no place in the queue.
        num_failed: Blocks whose writing failed with an error that the tier did not expect.
    """

    def __init__(self, tier: SlowTier, most_queued: int, traffic: Traffic) -> None:
        self._tier = tier
        self._most_queued = most_queued
        self._traffic = traffic
        self._queue: OrderedDict[bytes, Bytes] = OrderedDict()
        self._changed = threading.Condition()
        self._is_closed = False
        self._num_resets = 0
        self.num_dropped = 0
        self.num_failed = 0
        self._thread = threading.Thread(
            target=self._run, name=f"quire-kv-{tier.label}-write", daemon=True
        )
        self._thread.start()

    @property
    def num_queued(self) -> int:
        """Number of blocks that wait, the one being written among them."""
        return len(self._queue)

    def offer(self, block_hash: bytes, data: Bytes) -> None:
        """Queue a copy of a block, unless the tier has it or the queue has it or is full."""
        if self._tier.contains(block_hash):
            return
        with self._changed:
            if block_hash in self._queue:
                return
            if len(self._queue) >= self._most_queued:
                self.num_dropped += 1
                return
            self._queue[block_hash] = data.copy()
            self._changed.notify()

    def reset(self) -> None:
        """Drop queued blocks; the one being written is removed from the tier once it is written."""
        with self._changed:
            self._queue.clear()
            self._num_resets += 1

    def close(self) -> None:
        """Write queued blocks, for a while; then end the thread, unless its device is stuck."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(LAST_SECONDS)
        with self._changed:
            self._queue.clear()
        self._thread.join(LAST_SECONDS)

    def _run(self) -> None:
        step_back()
        while True:
            with self._changed:
                while not self._queue:
                    if self._is_closed:
                        return
                    self._changed.wait()
                block_hash, data = next(iter(self._queue.items()))
                num_resets = self._num_resets
            start = time.perf_counter()
            try:
                is_kept = self._tier.write(block_hash, data)
            except Exception:  # only this block is lost; the thread has others to write
                self.num_failed += 1
                log.exception("[kv_tiers] writing to %s failed", self._tier.label)
                is_kept = False
            if is_kept:
                self._traffic.stored(len(data), time.perf_counter() - start)
            with self._changed:
                is_wanted = num_resets == self._num_resets
                if is_wanted:  # else the same block may have been queued since
                    self._queue.pop(block_hash, None)
            if not is_wanted:
                self._tier.forget(block_hash)
