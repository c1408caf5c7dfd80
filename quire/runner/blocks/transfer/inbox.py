"""A RAM tier that other engines fill: blocks of prompts that they compute for this one."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quire.core.metrics import Samples
from quire.runner.blocks.tiers.sealed_block import Bytes
from quire.runner.blocks.tiers.traffic import Traffic
from quire.runner.blocks.transfer.shared_blocks import SharedBlocks
from quire.runner.blocks.transfer.transfer_messages import NO_ROW, ReceiverHello

#: Seconds to wait for a block on its way, since its sender last sent or since it was missed.
PATIENCE_SECONDS = 1.0


class Port(Protocol):
    """A port that senders connect to."""

    def close(self) -> None:
        """Close all connections."""
        ...


@dataclass(slots=True, eq=False)
class Sender:
    """A connection's state: an engine that fills rows.

    Attributes:
        brings: Whether blocks take a while to arrive, as they do over a network.
        offered: Hashes of the blocks that the sender may still send.
        heard: Time at which the sender last sent a block.
    """

    brings: bool
    offered: set[bytes] = field(default_factory=set)
    heard: float = 0.0


@dataclass(slots=True)
class _Expected:
    row: int
    sender: Sender
    missed: float | None = None  # time of the first lookup that missed it


class Inbox:
    """Blocks by content hash.

    The engine's thread uses it as a :class:`~quire.runner.blocks.tiers.memory_tier.MemoryTier`; a
    thread for each sender answers its offers.

    Args:
        num_blocks: Blocks that the inbox holds, at most, those on their way included.
        block_bytes: Bytes of each block.

    Attributes:
        memory: Memory of the blocks, which senders of this machine write to.
        hello: The first message to senders.
        ports: Ports that senders connect to, which are closed with the inbox.
    """

    label = "ram"

    def __init__(self, num_blocks: int, block_bytes: int) -> None:
        self.memory = SharedBlocks.create(num_blocks, block_bytes)
        self.hello = ReceiverHello(num_blocks, block_bytes)
        self._block_bytes, self._num_rows = block_bytes, num_blocks
        self._lock = threading.Lock()  # of all that follows
        self._rows: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self._free = list(range(num_blocks - 1, -1, -1))
        self._expected: dict[bytes, _Expected] = {}
        self._traffic, self._num_damaged = Traffic("transfer"), 0
        self._is_cached: Callable[[bytes], bool] = lambda block_hash: False
        self.ports: list[Port] = []

    @property
    def num_blocks(self) -> int:
        """Number of blocks that the inbox holds now, those on their way included."""
        return self._num_rows - len(self._free)

    @property
    def nbytes(self) -> int:
        """Bytes of these blocks."""
        return self.num_blocks * self._block_bytes

    def __contains__(self, block_hash: bytes) -> bool:
        """Whether the inbox holds a block that has arrived."""
        with self._lock:
            return block_hash in self._rows or self._has_come(block_hash)

    def skip(self, is_cached: Callable[[bytes], bool]) -> None:
        """Set the test for blocks that the engine has in its cache, so needs no copy of."""
        self._is_cached = is_cached

    def is_coming(self, block_hash: bytes) -> bool:
        """Return whether a block is on its way and worth a wait."""
        with self._lock:
            expected = self._expected.get(block_hash)
            if expected is None or not expected.sender.brings:
                return False
            now = time.monotonic()
            if expected.missed is None:
                expected.missed = now
            return now - max(expected.missed, expected.sender.heard) < PATIENCE_SECONDS

    def put(self, block_hash: bytes, data: Bytes) -> bool:
        """Copy a block that leaves the cache; return whether it is new."""
        with self._lock:
            if block_hash in self._expected:
                return False  # it will arrive, or can be computed
            row = self._rows.pop(block_hash, None)
            is_new = row is None
            if row is None:
                row = self._take_row()
                if row is None:
                    return False
                self.memory.rows[row] = data
            self._rows[block_hash] = row
            return is_new

    def get(self, block_hash: bytes) -> Bytes:
        """Return a copy of a block, and record its use.

        Raises:
            KeyError: The inbox does not hold the block.
        """
        with self._lock:
            self._has_come(block_hash)
            self._rows.move_to_end(block_hash)
            found: Bytes = self.memory.rows[self._rows[block_hash]].copy()
        return found

    def clear(self) -> None:
        """Forget all blocks except those on their way, which were computed since."""
        with self._lock:
            self._free += self._rows.values()
            self._rows.clear()

    def close(self) -> None:
        """Close the ports and their connections."""
        for port in self.ports:
            port.close()

    def samples(self) -> Samples:
        """Return the traffic from other machines, by metric stem."""
        with self._lock:
            damaged = {'kv_offload_damaged_blocks{tier="transfer"}': self._num_damaged}
            return self._traffic.samples() | damaged

    def _has_come(self, block_hash: bytes) -> bool:
        """Return whether an offered block has arrived, and make it one like others if so."""
        expected = self._expected.get(block_hash)
        if expected is None or not self.memory.flags[expected.row]:
            return False
        del self._expected[block_hash]
        self._rows[block_hash] = expected.row
        return True

    def _take_row(self) -> int | None:
        if self._free:
            return self._free.pop()
        return self._rows.popitem(last=False)[1] if self._rows else None

    # -- for senders, in threads of their own -------------------------------------------------
    def reserve(self, block_hashes: Sequence[bytes], sender: Sender) -> list[int]:
        """Return a row for each block that is missing here, and ``NO_ROW`` for others."""
        rows = []
        with self._lock:
            for block_hash in block_hashes:
                held = block_hash in self._rows or block_hash in self._expected
                row = None if held or self._is_cached(block_hash) else self._take_row()
                if row is not None:
                    self.memory.flags[row] = 0
                    self._expected[block_hash] = _Expected(row, sender)
                    sender.offered.add(block_hash)
                rows.append(NO_ROW if row is None else row)
        return rows

    def rows_of(self, block_hashes: Sequence[bytes], sender: Sender) -> list[int]:
        """Return the rows that a sender may now fill.

        Raises:
            OSError: The sender has not offered the blocks, or has sent them already.
        """
        with self._lock:
            found = [self._expected.get(block_hash) for block_hash in block_hashes]
            rows = [one.row for one in found if one is not None and one.sender is sender]
        if len(set(rows)) < len(block_hashes):
            raise OSError("blocks must be offered before they are sent")
        return rows

    def brought(
        self, block_hashes: Sequence[bytes], sender: Sender, whole: Sequence[bool], seconds: float
    ) -> None:
        """Record blocks that were written to their rows, and which of them arrived undamaged."""
        with self._lock:
            sender.heard = time.monotonic()
            self._traffic.loaded(len(block_hashes) * self._block_bytes, seconds)
            for block_hash, is_whole in zip(block_hashes, whole, strict=True):
                sender.offered.discard(block_hash)
                if is_whole:
                    self.memory.flags[self._expected[block_hash].row] = 1
                    self._has_come(block_hash)
                else:
                    self._num_damaged += 1
                    self._free.append(self._expected.pop(block_hash).row)

    def give_up(self, block_hashes: Sequence[bytes], sender: Sender) -> None:
        """Free the rows of blocks that have not arrived and will not."""
        with self._lock:
            for block_hash in block_hashes:
                sender.offered.discard(block_hash)
                expected = self._expected.get(block_hash)
                if expected is None or expected.sender is not sender:
                    continue
                if not self._has_come(block_hash):
                    self._free.append(self._expected.pop(block_hash).row)
