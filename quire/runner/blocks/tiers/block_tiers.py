"""All tiers of one engine as one: it chooses the tier to find a block in, and the tier to keep it.

It is the engine's :class:`~quire.engine.gates.tier_gate.Tiers` and the runner's
:class:`~quire.runner.blocks.block_store.BlockStore`; both call it from the engine's thread. Blocks
that leave the cache go to memory; blocks that a step fills go to tiers that outlive the engine, in
threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from quire.core.external_blocks import ExternalBlocks
from quire.core.metrics import Samples
from quire.runner.blocks.tiers.block_reader import NEW_WEIGHT, BlockReader
from quire.runner.blocks.tiers.memory_tier import MemoryTier
from quire.runner.blocks.tiers.sealed_block import Bytes
from quire.runner.blocks.tiers.slow_tiers import SlowTiers
from quire.runner.blocks.tiers.traffic import Traffic

#: Seconds that a byte takes from memory to the cache, until that is measured.
MOVE_BYTE_SECONDS = 1 / 4e9


class BlockTiers:
    """Blocks outside of the cache.

    Args:
        ram: The tier in memory.
        slow: The other tiers.
        block_bytes: Bytes of each block.

    Attributes:
        slow: The other tiers.
        outgoing: Sender of blocks to other engines: tiers have none.
        outlive: Whether a tier outlives the engine, so that full blocks are saved at once.
    """

    outgoing: None = None

    def __init__(self, ram: MemoryTier, slow: SlowTiers, block_bytes: int) -> None:
        self._ram = ram
        self.slow = slow
        self._block_bytes = block_bytes
        self._move_seconds = block_bytes * MOVE_BYTE_SECONDS
        self._ram_traffic = Traffic(ram.label)
        self.outlive = slow.are_writable
        self._claimed: dict[bytes, Bytes] = {}
        self._num_from_ram = 0  # since blocks were moved

    @property
    def move_seconds(self) -> float:
        """Seconds to copy a block from memory into the cache, as measured lately."""
        return self._move_seconds

    def skip(self, is_cached: Callable[[bytes], bool]) -> None:
        """Set the test for cached blocks, which other engines need not send."""
        self._ram.skip(is_cached)

    def find(self, block_hashes: Sequence[bytes]) -> ExternalBlocks | None:
        """Look up a chain; None while a slow tier does: ask again with the same chain."""
        seconds: list[float] = []
        used: set[BlockReader] = set()
        while len(seconds) < len(block_hashes):
            if block_hashes[len(seconds)] in self._ram:
                seconds.append(self._move_seconds)
                continue
            if self._ram.is_coming(block_hashes[len(seconds)]):
                return None
            found = self.slow.find(block_hashes[len(seconds) :])
            if found is None:
                return None
            count, reader = found
            if reader is None:
                break
            seconds += [reader.block_seconds + self._move_seconds] * count
            used.add(reader)
        return ExternalBlocks(seconds, sum(reader.backlog_seconds for reader in used))

    def touch(self, block_hashes: Sequence[bytes]) -> None:
        """Record a use of blocks that the cache has, so that tiers evict them later."""
        self.slow.touch(block_hashes)

    def fetch(self, block_hashes: Sequence[bytes]) -> None:
        """Begin to read the blocks that are not in memory, in this order."""
        for block_hash in block_hashes:
            self.slow.fetch(block_hash, is_in_memory=block_hash in self._ram)

    def num_ready(self, block_hashes: Sequence[bytes]) -> int | None:
        """Return the number of leading blocks in memory; None when the first will not arrive."""
        for count, block_hash in enumerate(block_hashes):
            if not self._is_ready(block_hash):
                if count or self.slow.is_coming(block_hash):
                    return count
                # It may have arrived in between.
                return count if self._is_ready(block_hash) else None
        return len(block_hashes)

    def claim(self, block_hashes: Sequence[bytes]) -> None:
        """Keep blocks that are in memory there until the next step loads them."""
        for block_hash in block_hashes:
            found = self.slow.take(block_hash)
            if found is not None:
                self._claimed[block_hash] = found

    def leave(self, block_hashes: Sequence[bytes]) -> None:
        """Record that a request no longer waits for blocks that were fetched for it."""
        for block_hash in block_hashes:
            self.slow.leave(block_hash)

    def wait(self, seconds: float) -> None:
        """Wait until a block or an answer has arrived, at most ``seconds``."""
        self.slow.wait(seconds)

    def reset(self) -> None:
        """Forget all blocks except those that other engines use, too."""
        self._ram.clear()
        self.slow.reset()

    def put(self, block_hash: bytes, data: Bytes) -> None:
        """Keep a block that leaves the cache in memory."""
        start = time.perf_counter()
        if self._ram.put(block_hash, data):
            self._ram_traffic.stored(len(data), time.perf_counter() - start)
        self.save(block_hash, data)

    def save(self, block_hash: bytes, data: Bytes) -> None:
        """Keep a block that stays in the cache in tiers that outlive the engine."""
        self.slow.save(block_hash, data)

    def wants(self, block_hash: bytes) -> bool:
        """Return whether blocks that stay in the cache are saved."""
        return self.outlive

    def get(self, block_hash: bytes) -> Bytes:
        """Return a block.

        Raises:
            KeyError: The block is not in memory.
        """
        found = self._claimed.pop(block_hash, None)
        if found is None:
            found = self._ram.get(block_hash)
            self._num_from_ram += 1
        return found

    def moved(self, num_blocks: int, seconds: float) -> None:
        """Record the seconds that loading blocks took."""
        self._claimed.clear()
        if not num_blocks:
            return
        own, self._num_from_ram = self._num_from_ram, 0
        if own:
            self._ram_traffic.loaded(own * self._block_bytes, seconds * own / num_blocks)
        self._move_seconds += NEW_WEIGHT * (seconds / num_blocks - self._move_seconds)

    def close(self) -> None:
        """Write what is queued, for a while, and end the threads."""
        self.slow.close()
        self._ram.close()

    def samples(self) -> Samples:
        """Return counts of moved and held blocks, by metric stem."""
        values: Samples = {
            'kv_offload_blocks{tier="ram"}': self._ram.num_blocks,
            'kv_offload_held_bytes{tier="ram"}': self._ram.nbytes,
        }
        return values | self._ram_traffic.samples() | self._ram.samples() | self.slow.samples()

    def describe(self) -> str:
        """Return the content of each tier as text, for people."""
        ram = f"ram: {self._ram.num_blocks} blocks, {self._ram.nbytes} bytes"
        return "; ".join(["tiers: " + ram, *(tier.describe() for tier in self.slow.tiers)])

    def _is_ready(self, block_hash: bytes) -> bool:
        return block_hash in self._ram or self.slow.is_ready(block_hash)
