"""Reader of one tier's blocks in a thread, which keeps a few until the engine takes them."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence

from quire.runner.blocks.tiers.sealed_block import Bytes
from quire.runner.blocks.tiers.slow_tier import SlowTier
from quire.runner.blocks.tiers.traffic import Traffic
from quire.system.background_thread import LAST_SECONDS, step_back
from quire.system.log import get_logger

log = get_logger(__name__)

#: Weight of the last measurement in the mean.
NEW_WEIGHT = 0.3
#: Factor on the expected seconds at each lookup, so that a slow tier is tried again some day.
FORGOTTEN = 0.995
#: Answers to lookups that are kept until a request asks for them, at most.
MOST_ANSWERS = 256


class BlockReader:
    """Blocks of a tier on their way to memory.

    Args:
        tier: The tier that has the blocks.
        block_bytes: Bytes of each block.
        num_staged: Blocks that wait to be taken, at most.
        traffic: The tier's counters.
        arrived: Condition that is notified when a block or an answer has arrived; its lock guards
            the state that threads share.

    Attributes:
        num_failed: Number of reads and lookups whose error the tier did not expect.
    """

    def __init__(
        self,
        tier: SlowTier,
        block_bytes: int,
        num_staged: int,
        traffic: Traffic,
        arrived: threading.Condition,
    ) -> None:
        self.tier = tier
        self._num_staged = num_staged
        self._traffic = traffic
        self._arrived = arrived
        self._seconds = block_bytes * tier.byte_seconds
        self._wanted: Counter[bytes] = Counter()  # number of requests that want it
        self._queue: OrderedDict[bytes, None] = OrderedDict()
        self._reading: bytes | None = None
        self._staged: dict[bytes, Bytes] = {}
        self._lookups: OrderedDict[bytes, list[bytes]] = OrderedDict()  # by the chain's first block
        self._answers: OrderedDict[bytes, int] = OrderedDict()
        self._is_closed = False
        self.num_failed = 0
        self._thread = threading.Thread(
            target=self._run, name=f"quire-kv-{tier.label}-read", daemon=True
        )
        self._thread.start()

    @property
    def block_seconds(self) -> float:
        """Seconds to read a block, as measured lately."""
        return self._seconds

    @property
    def backlog_seconds(self) -> float:
        """Seconds to read the blocks that other requests wait for."""
        return len(self._queue) * self._seconds

    def look_up(self, chain: Sequence[bytes]) -> int | None:
        """Return the number of leading blocks of a chain in the tier; None: ask again with it."""
        with self._arrived:
            answer = self._answers.pop(chain[0], None)
            if answer is not None:
                self._seconds *= FORGOTTEN
                return min(answer, len(chain))
            self._lookups.setdefault(chain[0], list(chain))
            self._arrived.notify_all()
            return None

    def want(self, block_hash: bytes) -> None:
        """Read a block, after those that were asked for before."""
        with self._arrived:
            self._wanted[block_hash] += 1
            if self._wanted[block_hash] == 1:
                self._queue[block_hash] = None
                self._arrived.notify_all()

    def leave(self, block_hash: bytes) -> bool:
        """Undo one :meth:`want`; return whether it was the last for this block."""
        with self._arrived:
            if self._wanted[block_hash] > 1:
                self._wanted[block_hash] -= 1
                return False
            del self._wanted[block_hash]
            self._queue.pop(block_hash, None)
            if self._staged.pop(block_hash, None) is not None:
                self._arrived.notify_all()
            return True

    def is_ready(self, block_hash: bytes) -> bool:
        """Whether a block is in memory."""
        return block_hash in self._staged

    def is_coming(self, block_hash: bytes) -> bool:
        """Whether a block is wanted, and may still arrive or turn out to be missing."""
        with self._arrived:
            return block_hash in self._queue or block_hash == self._reading

    def take(self, block_hash: bytes) -> Bytes | None:
        """Return a block that is ready, and forget it; None for other blocks."""
        with self._arrived:
            found = self._staged.pop(block_hash, None)
            self._arrived.notify_all()
            return found

    def close(self) -> None:
        """End the thread, unless it is reading a block from a device that does not answer."""
        with self._arrived:
            self._is_closed = True
            self._arrived.notify_all()
        self._thread.join(LAST_SECONDS)

    def _run(self) -> None:
        step_back()
        while (job := self._next()) is not None:
            try:
                if isinstance(job, list):
                    self._answer(job)
                else:
                    self._read(job)
            except Exception:  # only this block is lost; the thread has others to read
                self.num_failed += 1
                log.exception("[kv_tiers] reading from %s failed", self.tier.label)

    def _next(self) -> bytes | list[bytes] | None:
        """Wait for the next block to read, or chain to look up; None once closed."""
        with self._arrived:
            while not self._is_closed:
                if self._lookups:
                    return self._lookups[next(iter(self._lookups))]
                if self._queue and len(self._staged) < self._num_staged:
                    self._reading, _ = self._queue.popitem(last=False)
                    return self._reading
                self._arrived.wait()
            return None

    def _answer(self, chain: list[bytes]) -> None:
        count = 0
        try:
            count = self.tier.look_up(chain)
        finally:
            with self._arrived:
                del self._lookups[chain[0]]
                self._answers[chain[0]] = count
                if len(self._answers) > MOST_ANSWERS:
                    self._answers.popitem(last=False)
                self._arrived.notify_all()

    def _read(self, block_hash: bytes) -> None:
        start = time.perf_counter()
        found = None
        try:
            found = self.tier.read(block_hash)
        finally:
            seconds = time.perf_counter() - start
            with self._arrived:
                self._reading = None
                if found is not None:
                    self._seconds += NEW_WEIGHT * (seconds - self._seconds)
                    self._traffic.loaded(len(found), seconds)
                    if self._wanted[block_hash]:
                        self._staged[block_hash] = found
                self._arrived.notify_all()
