"""KV blocks by content outside of the cache; which ones move is the engine's business.

No setting gives a runner a store yet, only tests do.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from quire.core.log import get_logger
from quire.core.step import SchedulerOutput
from quire.kernels.backend import KVCache

log = get_logger(__name__)


class BlockStore(Protocol):
    """Keeps the bytes of blocks."""

    def put(self, block_hash: bytes, data: bytes) -> None:
        """Keep a block."""
        ...

    def get(self, block_hash: bytes) -> bytes:
        """Return a block that was put; an error, or another length, costs the block alone."""
        ...


def move_blocks(plan: SchedulerOutput, kv_cache: KVCache, store: BlockStore) -> list[int]:
    """Store what a plan stores, then load what it loads.

    Returns:
        Blocks that were to be loaded and could not; their content is undefined.
    """
    stored = kv_cache.read_blocks([block_id for block_id, _ in plan.block_stores])
    for (block_id, block_hash), data in zip(plan.block_stores, stored, strict=True):
        try:
            store.put(block_hash, data.tobytes())
        except Exception as error:
            log.warning("[block_store] block %d was not kept: %r", block_id, error)
    found: dict[int, npt.NDArray[np.uint8]] = {}
    for block_id, block_hash in plan.block_loads:
        try:
            found[block_id] = _checked(store.get(block_hash), kv_cache.spec.block_bytes)
        except Exception as error:
            log.warning("[block_store] block %d is computed, not loaded: %r", block_id, error)
    if found:
        kv_cache.write_blocks(list(found), np.stack(list(found.values())))
    return [block_id for block_id, _ in plan.block_loads if block_id not in found]


def _checked(data: bytes, num_bytes: int) -> npt.NDArray[np.uint8]:
    if len(data) != num_bytes:
        raise ValueError(f"a block must have {num_bytes} bytes; got {len(data)}")
    return np.frombuffer(data, np.uint8)
