"""All tiers of one engine as one: where a block is looked for, and where it goes.

It is the engine's :class:`~quire.engine.tier_gate.Tiers` and the runner's
:class:`~quire.runner.block_store.BlockStore`; both call it from the engine's thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from quire.core.found_blocks import FoundBlocks
from quire.core.metrics import Samples
from quire.core.offload_options import OffloadOptions
from quire.runner.tiers.ram_tier import Bytes, RamTier
from quire.runner.tiers.traffic import Traffic

#: Seconds that a byte takes from memory to the cache before that was measured.
MOVE_BYTE_SECONDS = 1 / 4e9
#: Weight of the last measurement.
NEW_WEIGHT = 0.3


class BlockTiers:
    """Blocks outside of the cache.

    Args:
        ram: In memory.
        block_bytes: Of each block.
    """

    outlive = False

    def __init__(self, ram: RamTier, block_bytes: int) -> None:
        self._ram = ram
        self._block_bytes = block_bytes
        self._move_seconds = block_bytes * MOVE_BYTE_SECONDS
        self._traffic = Traffic(ram.label)

    @property
    def move_seconds(self) -> float:
        """What it takes to copy a block from memory into the cache, as measured lately."""
        return self._move_seconds

    def find(self, block_hashes: Sequence[bytes]) -> FoundBlocks | None:
        """Look up a chain."""
        return FoundBlocks([self._move_seconds] * self._num_there(block_hashes))

    def fetch(self, block_hashes: Sequence[bytes]) -> None:
        """Read blocks into memory: they are there."""

    def num_ready(self, block_hashes: Sequence[bytes]) -> int | None:
        """Return how many leading blocks are in memory; None when the first will not come."""
        return self._num_there(block_hashes) or None

    def leave(self, block_hashes: Sequence[bytes]) -> None:
        """Nobody waits for these."""

    def wait(self, seconds: float) -> None:
        """Wait for what is being read: nothing."""

    def reset(self) -> None:
        """Forget all blocks."""
        self._ram.clear()

    def put(self, block_hash: bytes, data: Bytes) -> None:
        """Keep a block that leaves the cache."""
        start = time.perf_counter()
        self._ram.put(block_hash, data)
        self._traffic.stored(len(data), time.perf_counter() - start)

    def save(self, block_hash: bytes, data: Bytes) -> None:
        """Keep a block that stays in the cache: nothing outlives the engine."""

    def get(self, block_hash: bytes) -> Bytes:
        """Return a block."""
        return self._ram.get(block_hash)

    def moved(self, num_blocks: int, seconds: float) -> None:
        """Take note of what loading took."""
        self._traffic.loaded(num_blocks * self._block_bytes, seconds)
        self._move_seconds += NEW_WEIGHT * (seconds / num_blocks - self._move_seconds)

    def close(self) -> None:
        """End what runs besides: nothing."""

    def samples(self) -> Samples:
        """Return what was moved, and what is held, by metric stem."""
        held = {
            'kv_offload_blocks{tier="ram"}': self._ram.num_blocks,
            'kv_offload_held_bytes{tier="ram"}': self._ram.nbytes,
        }
        return held | self._traffic.samples()

    def describe(self) -> str:
        """Return what is held, for people."""
        return f"ram: {self._ram.num_blocks} blocks, {self._ram.nbytes} bytes"

    def _num_there(self, block_hashes: Sequence[bytes]) -> int:
        for count, block_hash in enumerate(block_hashes):
            if block_hash not in self._ram:
                return count
        return len(block_hashes)


def create_tiers(options: OffloadOptions, block_bytes: int) -> BlockTiers | None:
    """Return the tiers that settings ask for; None for none."""
    num_blocks = options.ram_bytes // block_bytes
    return BlockTiers(RamTier(num_blocks, block_bytes), block_bytes) if num_blocks else None
