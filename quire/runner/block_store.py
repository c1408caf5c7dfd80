"""KV blocks by content outside of the cache; which ones move is the engine's business."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from quire.core.step import SchedulerOutput
from quire.kernels.backend import KVCache


class BlockStore(Protocol):
    """Keeps the bytes of blocks."""

    def put(self, block_hash: bytes, data: bytes) -> None:
        """Keep a block."""
        ...

    def get(self, block_hash: bytes) -> bytes:
        """Return a block that was put; a step that asks for another one fails as a whole."""
        ...


def move_blocks(plan: SchedulerOutput, kv_cache: KVCache, store: BlockStore) -> None:
    """Store what a plan stores, then load what it loads."""
    stored = kv_cache.read_blocks([block_id for block_id, _ in plan.block_stores])
    for (_, block_hash), data in zip(plan.block_stores, stored, strict=True):
        store.put(block_hash, data.tobytes())
    if plan.block_loads:
        found = [np.frombuffer(store.get(key), np.uint8) for _, key in plan.block_loads]
        kv_cache.write_blocks([block_id for block_id, _ in plan.block_loads], np.stack(found))
