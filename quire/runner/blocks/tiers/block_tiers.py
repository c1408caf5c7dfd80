"""All tiers of one engine as one: it chooses the tier to find a block in, and the tier to keep it.

It is the engine's :class:`~quire.engine.gates.tier_gate.Tiers` and the runner's
:class:`~quire.runner.blocks.block_store.BlockStore`; both call it from the engine's thread. Blocks
that leave the cache go to memory; blocks that a step fills go to tiers that outlive the engine, in
threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from quire.core.external_blocks import ExternalBlocks
from quire.core.metrics import Samples
from quire.runner.blocks.tiers.block_reader import NEW_WEIGHT, BlockReader
from quire.runner.blocks.tiers.block_writer import BlockWriter
from quire.runner.blocks.tiers.ram_tier import RamTier
from quire.runner.blocks.tiers.sealed_block import Bytes
from quire.runner.blocks.tiers.slow_tier import SlowTier
from quire.runner.blocks.tiers.traffic import Traffic
from quire.runner.blocks.transfer.inbox import Inbox

#: Seconds that a byte takes from memory to the cache, until that is measured.
MOVE_BYTE_SECONDS = 1 / 4e9


class BlockTiers:
    """Blocks outside of the cache.

    Args:
        ram: The tier in memory.
        slow: Other tiers, the quickest first.
        block_bytes: Bytes of each block.
        num_staged: Blocks of each slow tier that were read and wait to be taken, at most.
        num_queued: Blocks that wait to be written to each slow tier, at most.

    Attributes:
        outlive: Whether a tier outlives the engine, so that full blocks are saved at once.
    """

    def __init__(
        self,
        ram: RamTier | Inbox,
        slow: Sequence[SlowTier],
        block_bytes: int,
        num_staged: int,
        num_queued: int,
    ) -> None:
        self._ram = ram
        self._block_bytes = block_bytes
        self._move_seconds = block_bytes * MOVE_BYTE_SECONDS
        self._arrived = threading.Condition()
        self._ram_traffic = Traffic(ram.label)
        self._slow = tuple(slow)
        traffic = {tier.label: Traffic(tier.label) for tier in slow}
        self._traffic = [self._ram_traffic, *traffic.values()]
        self._readers = [
            BlockReader(tier, block_bytes, num_staged, traffic[tier.label], self._arrived)
            for tier in slow
        ]
        self._writers = {
            tier.label: BlockWriter(tier, num_queued, traffic[tier.label])
            for tier in slow
            if tier.is_writable
        }
        self.outlive = bool(self._writers)
        self._coming: dict[bytes, BlockReader] = {}
        self._claimed: dict[bytes, Bytes] = {}
        self._num_from_ram = 0  # since blocks were moved

    @property
    def move_seconds(self) -> float:
        """Seconds to copy a block from memory into the cache, as measured lately."""
        return self._move_seconds

    def skip(self, is_cached: Callable[[bytes], bool]) -> None:
        """Set the test for cached blocks, which other engines need not send."""
        if isinstance(self._ram, Inbox):
            self._ram.is_cached = is_cached

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
            for reader in self._readers:
                count = self._find_slow(reader, block_hashes[len(seconds) :])
                if count is None:
                    return None
                if count:
                    seconds += [reader.block_seconds + self._move_seconds] * count
                    used.add(reader)
                    break
            else:
                break
        return ExternalBlocks(seconds, sum(reader.backlog_seconds for reader in used))

    def touch(self, block_hashes: Sequence[bytes]) -> None:
        """Record a use of blocks that the cache has, so that tiers evict them later."""
        for tier in self._slow:
            tier.touch(block_hashes)

    def fetch(self, block_hashes: Sequence[bytes]) -> None:
        """Begin to read the blocks that are not in memory, in this order."""
        for block_hash in block_hashes:
            reader = self._coming.get(block_hash)
            if reader is None and block_hash not in self._ram:
                reader = self._reader_of(block_hash)
            if reader is not None:
                reader.want(block_hash)
                self._coming[block_hash] = reader

    def num_ready(self, block_hashes: Sequence[bytes]) -> int | None:
        """Return the number of leading blocks in memory; None when the first will not arrive."""
        for count, block_hash in enumerate(block_hashes):
            if not self._is_ready(block_hash):
                reader = self._coming.get(block_hash)
                if count or (reader is not None and reader.is_coming(block_hash)):
                    return count
                # It may have arrived in between.
                return count if self._is_ready(block_hash) else None
        return len(block_hashes)

    def claim(self, block_hashes: Sequence[bytes]) -> None:
        """Keep blocks that are in memory there until the next step loads them."""
        for block_hash in block_hashes:
            reader = self._coming.get(block_hash)
            found = None if reader is None else reader.take(block_hash)
            if found is not None:
                self._claimed[block_hash] = found

    def leave(self, block_hashes: Sequence[bytes]) -> None:
        """Record that a request no longer waits for blocks that were fetched for it."""
        for block_hash in block_hashes:
            reader = self._coming.get(block_hash)
            if reader is not None and reader.leave(block_hash):
                del self._coming[block_hash]

    def wait(self, seconds: float) -> None:
        """Wait until a block or an answer has arrived, at most ``seconds``."""
        with self._arrived:
            self._arrived.wait(seconds)

    def reset(self) -> None:
        """Forget all blocks except those that other engines use, too."""
        self._ram.clear()
        for writer in self._writers.values():
            writer.reset()
        for tier in self._slow:
            tier.clear()

    def put(self, block_hash: bytes, data: Bytes) -> None:
        """Keep a block that leaves the cache in memory."""
        start = time.perf_counter()
        if self._ram.put(block_hash, data):
            self._ram_traffic.stored(len(data), time.perf_counter() - start)
        self.save(block_hash, data)

    def save(self, block_hash: bytes, data: Bytes) -> None:
        """Keep a block that stays in the cache in tiers that outlive the engine."""
        for writer in self._writers.values():
            writer.offer(block_hash, data)

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

    @property
    def num_queued(self) -> int:
        """Number of blocks that wait to be written."""
        return sum(writer.num_queued for writer in self._writers.values())

    def close(self) -> None:
        """Write what is queued, for a while, and end the threads."""
        for reader in self._readers:
            reader.close()
        for writer in self._writers.values():
            writer.close()
        for tier in self._slow:
            tier.close()
        self._ram.close()

    def samples(self) -> Samples:
        """Return counts of moved and held blocks, by metric stem."""
        values: Samples = {
            'kv_offload_blocks{tier="ram"}': self._ram.num_blocks,
            'kv_offload_held_bytes{tier="ram"}': self._ram.nbytes,
        }
        for traffic in self._traffic:
            values |= traffic.samples()
        if isinstance(self._ram, Inbox):
            values |= self._ram.samples()
        for tier in self._slow:
            values |= tier.samples()
        for tier, reader in zip(self._slow, self._readers, strict=True):
            writer = self._writers.get(tier.label)
            num_failed = tier.num_failures + reader.num_failed
            num_failed += 0 if writer is None else writer.num_failed
            values[f'kv_offload_failures{{tier="{tier.label}"}}'] = num_failed
        for label, writer in self._writers.items():
            values[f'kv_offload_dropped_blocks{{tier="{label}"}}'] = writer.num_dropped
        return values

    def describe(self) -> str:
        """Return the content of each tier as text, for people."""
        ram = f"ram: {self._ram.num_blocks} blocks, {self._ram.nbytes} bytes"
        return "; ".join(["tiers: " + ram, *(tier.describe() for tier in self._slow)])

    def _is_ready(self, block_hash: bytes) -> bool:
        reader = self._coming.get(block_hash)
        return block_hash in self._ram or (reader is not None and reader.is_ready(block_hash))

    def _reader_of(self, block_hash: bytes) -> BlockReader | None:
        for reader in self._readers:
            if reader.tier.contains(block_hash) is not False:
                return reader
        return None

    def _find_slow(self, reader: BlockReader, chain: Sequence[bytes]) -> int | None:
        """Return the number of leading blocks in a slow tier; None while it is being asked."""
        count = 0
        while count < len(chain) and (there := reader.tier.contains(chain[count])):
            count += 1
        if count == 0 and there is None:
            return reader.look_up(chain)
        return count
