"""Moves of KV blocks between the cache and a store; the engine chooses the blocks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from quire.core.step import NotComputed, SchedulerOutput, StepOutput
from quire.kernels.backend import KVCache
from quire.system.log import get_logger

log = get_logger(__name__)

Bytes = npt.NDArray[np.uint8]


class BlockStore(Protocol):
    """Store of blocks' bytes, as :meth:`~quire.kernels.backend.KVCache.read_blocks` returns them.

    Any method but the last two may fail for a block: that costs the block alone.
    """

    def put(self, block_hash: bytes, data: Bytes) -> None:
        """Keep a block that leaves the cache; ``data`` (block bytes,) stays the caller's."""
        ...

    def save(self, block_hash: bytes, data: Bytes) -> None:
        """Keep a block that stays in the cache, if the store outlives the engine."""
        ...

    def wants(self, block_hash: bytes) -> bool:
        """Return whether :meth:`save` would keep a block."""
        ...

    def get(self, block_hash: bytes) -> Bytes:
        """Return a block that was put, valid until the next call."""
        ...

    def moved(self, num_blocks: int, seconds: float) -> None:
        """Record that all blocks to load are in the cache, and the seconds that this took."""
        ...

    def close(self) -> None:
        """Close files and connections; no call follows."""
        ...


def move_blocks(plan: SchedulerOutput, kv_cache: KVCache, store: BlockStore) -> list[int]:
    """Store a plan's blocks to store, then load its blocks to load.

    Returns:
        Blocks that could not be loaded; their content is undefined.
    """
    start = time.perf_counter()
    found, loaded = _get_blocks(plan.block_loads, kv_cache.block_bytes, store)
    seconds = time.perf_counter() - start
    # Loads overwrite blocks that are stored, and a stored block may evict one to load.
    stored = kv_cache.read_blocks([block_id for block_id, _ in plan.block_stores])
    for (block_id, block_hash), data in zip(plan.block_stores, stored, strict=True):
        try:
            store.put(block_hash, data)
        except Exception as error:  # the protocol allows it
            log.warning("[block_store] block %d was not kept: %r", block_id, error)
    if plan.block_loads:
        start = time.perf_counter()
        kv_cache.write_blocks(found, loaded[: len(found)])
        store.moved(len(found), seconds + time.perf_counter() - start)
    return sorted({block_id for block_id, _ in plan.block_loads}.difference(found))


def _get_blocks(
    blocks: Sequence[tuple[int, bytes]], num_bytes: int, store: BlockStore
) -> tuple[list[int], Bytes]:
    """Return the blocks that were found, and (all blocks, ``num_bytes``) their bytes first."""
    found: list[int] = []
    loaded = np.empty((len(blocks), num_bytes), np.uint8)
    for block_id, block_hash in blocks:
        try:
            loaded[len(found)] = _checked(store.get(block_hash), num_bytes)
            found.append(block_id)
        except Exception as error:  # the protocol allows it; the block may be evicted since
            log.warning("[block_store] block %d is computed, not loaded: %r", block_id, error)
    return found, loaded


def save_blocks(
    blocks: Sequence[tuple[int, bytes]], output: StepOutput, kv_cache: KVCache, store: BlockStore
) -> None:
    """Save blocks that a step has filled; none where it could not compute all of its rows."""
    errors = any(result.error is not None for result in output.results.values())
    if errors or any(why is not NotComputed.LATE for why in output.not_computed.values()):
        return
    blocks = [(block_id, block_hash) for block_id, block_hash in blocks if store.wants(block_hash)]
    saved = kv_cache.read_blocks([block_id for block_id, _ in blocks])
    for (block_id, block_hash), data in zip(blocks, saved, strict=True):
        try:
            store.save(block_hash, data)
        except Exception as error:  # the protocol allows it
            log.warning("[block_store] block %d was not saved: %r", block_id, error)


def _checked(data: Bytes, num_bytes: int) -> Bytes:
    if len(data) != num_bytes:
        raise ValueError(f"a block must have {num_bytes} bytes; got {len(data)}")
    return data
