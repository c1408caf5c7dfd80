"""All tiers that are read and written in threads, as one: the quickest that has a block gives it.

The engine's thread calls it. A block is read when a request wants it, and waits here until it is
taken or no request wants it any more.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from quire.core.metrics import Samples
from quire.runner.blocks.tiers.block_reader import BlockReader
from quire.runner.blocks.tiers.block_writer import BlockWriter
from quire.runner.blocks.tiers.sealed_block import Bytes
from quire.runner.blocks.tiers.slow_tier import SlowTier
from quire.runner.blocks.tiers.traffic import Traffic


class SlowTiers:
    """Tiers with their readers and writers.

    Args:
        tiers: The tiers, the quickest first.
        block_bytes: Bytes of each block.
        num_staged: Blocks of each tier that were read and wait to be taken, at most.
        num_queued: Blocks that wait to be written to each tier, at most.

    Attributes:
        tiers: The tiers.
    """

    def __init__(
        self, tiers: Sequence[SlowTier], block_bytes: int, num_staged: int, num_queued: int
    ) -> None:
        self.tiers = tuple(tiers)
        self._arrived = threading.Condition()
        self._traffic = {tier.label: Traffic(tier.label) for tier in tiers}
        self._readers = [
            BlockReader(tier, block_bytes, num_staged, self._traffic[tier.label], self._arrived)
            for tier in tiers
        ]
        self._writers = {
            tier.label: BlockWriter(tier, num_queued, self._traffic[tier.label])
            for tier in tiers
            if tier.is_writable
        }
        self._wanted: dict[bytes, BlockReader] = {}

    @property
    def are_writable(self) -> bool:
        """Whether blocks are put into one of them."""
        return bool(self._writers)

    @property
    def num_queued(self) -> int:
        """Number of blocks that wait to be written."""
        return sum(writer.num_queued for writer in self._writers.values())

    def find(self, chain: Sequence[bytes]) -> tuple[int, BlockReader | None] | None:
        """Look up a chain of blocks.

        Returns:
            Number of leading blocks in the first tier that has any, and its reader; 0 and None
            where no tier has. None while one is being asked.
        """
        for reader in self._readers:
            count = self._count(reader, chain)
            if count is None:
                return None
            if count:
                return count, reader
        return 0, None

    def touch(self, block_hashes: Sequence[bytes]) -> None:
        """Record a use of blocks, which may be there or not."""
        for tier in self.tiers:
            tier.touch(block_hashes)

    def fetch(self, block_hash: bytes, *, is_in_memory: bool) -> None:
        """Want a block once more, and read it unless it is being read or is in memory."""
        reader = self._wanted.get(block_hash)
        if reader is None and not is_in_memory:
            reader = next(
                (r for r in self._readers if r.tier.contains(block_hash) is not False), None
            )
        if reader is not None:
            reader.want(block_hash)
            self._wanted[block_hash] = reader

    def leave(self, block_hash: bytes) -> None:
        """Undo one :meth:`fetch`."""
        reader = self._wanted.get(block_hash)
        if reader is not None and reader.leave(block_hash):
            del self._wanted[block_hash]

    def is_ready(self, block_hash: bytes) -> bool:
        """Return whether a block that was fetched can be taken."""
        reader = self._wanted.get(block_hash)
        return reader is not None and reader.is_ready(block_hash)

    def is_coming(self, block_hash: bytes) -> bool:
        """Return whether a block that was fetched may still arrive."""
        reader = self._wanted.get(block_hash)
        return reader is not None and reader.is_coming(block_hash)

    def take(self, block_hash: bytes) -> Bytes | None:
        """Return a block that is ready, and forget it; None for other blocks."""
        reader = self._wanted.get(block_hash)
        return None if reader is None else reader.take(block_hash)

    def wait(self, seconds: float) -> None:
        """Wait until a block or an answer has arrived, at most ``seconds``."""
        with self._arrived:
            self._arrived.wait(seconds)

    def save(self, block_hash: bytes, data: Bytes) -> None:
        """Keep a block in the writable tiers."""
        for writer in self._writers.values():
            writer.offer(block_hash, data)

    def reset(self) -> None:
        """Forget all blocks except those that other engines use, too."""
        for writer in self._writers.values():
            writer.reset()
        for tier in self.tiers:
            tier.clear()

    def close(self) -> None:
        """Write what is queued, for a while, and end the threads."""
        for reader in self._readers:
            reader.close()
        for writer in self._writers.values():
            writer.close()
        for tier in self.tiers:
            tier.close()

    def samples(self) -> Samples:
        """Return counts of moved and held blocks, by metric stem."""
        values: Samples = {}
        for tier, reader in zip(self.tiers, self._readers, strict=True):
            writer = self._writers.get(tier.label)
            num_failed = tier.num_failures + reader.num_failed
            num_failed += 0 if writer is None else writer.num_failed
            values |= self._traffic[tier.label].samples() | tier.samples()
            values[f'kv_offload_failures{{tier="{tier.label}"}}'] = num_failed
            if writer is not None:
                values[f'kv_offload_dropped_blocks{{tier="{tier.label}"}}'] = writer.num_dropped
        return values

    def _count(self, reader: BlockReader, chain: Sequence[bytes]) -> int | None:
        """Return the number of leading blocks in a reader's tier; None while it is being asked."""
        count = 0
        while count < len(chain) and (there := reader.tier.contains(chain[count])):
            count += 1
        if count == 0 and there is None:
            return reader.look_up(chain)
        return count
