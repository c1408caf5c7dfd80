"""The pool of KV blocks: reference counts, free queue, content map; it knows no requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quire.engine.cache.block_observer import BlockObserver

NULL_BLOCK = 0


class BlockPool:
    """All blocks of one KV cache.

    A block is free (``ref_cnt`` 0) or held by one or more block tables. A free block may still
    carry a hash: its content stays findable until the block is given out again. Free blocks form a
    doubly linked ring through the null block, so every operation is O(1) per block::

        null(0) <-> next to be given out <-> ... <-> freed last <-> null(0)

    Blocks without a hash are worthless once freed and enter at the front; hashed blocks enter at
    the back, which makes the ring least recently used first.

    Args:
        num_blocks: Blocks in the cache, the null block (id 0, never given out) included.
        observers: Observers that learn what becomes of the blocks.

    Attributes:
        ref_cnt: Number of tables that hold each block, by block id.
        block_hash: Content hash that each block can be found by, or None; by block id.
        cached: Content hash to block id.
        num_changes: Number of changes of ``cached`` so far.
        num_free: Blocks in the ring.
    """

    def __init__(self, num_blocks: int, observers: Sequence[BlockObserver] = ()) -> None:
        assert num_blocks >= 2, f"num_blocks must be at least 2 (null block + 1): {num_blocks}"
        self.num_blocks = num_blocks
        self.observers = tuple(observers)
        self.num_free = num_blocks - 1
        self.ref_cnt = [0] * num_blocks
        self.block_hash: list[bytes | None] = [None] * num_blocks
        self.cached: dict[bytes, int] = {}
        self.num_changes = 0
        self._next = [*range(1, num_blocks), NULL_BLOCK]
        self._previous = [num_blocks - 1, *range(num_blocks - 1)]

    @property
    def num_used(self) -> int:
        """Blocks held by at least one table."""
        return self.num_blocks - 1 - self.num_free

    def allocate(self, count: int) -> list[int]:
        """Give out free blocks, least recently used first; their cached content is lost."""
        assert count <= self.num_free, f"allocate {count} blocks of {self.num_free} free"
        return [self._give_out(self._next[NULL_BLOCK]) for _ in range(count)]

    def find_run(self, count: int) -> range | None:
        """Return ``count`` free blocks with consecutive ids; None when there are none.

        Runs begin at multiples of ``count``: when all are of one length, none is ever cut up.
        """
        for first in range(1, self.num_blocks - count + 1, count):
            run = range(first, first + count)
            if not any(self.ref_cnt[block_id] for block_id in run):
                return run
        return None

    def take(self, block_ids: Iterable[int]) -> list[int]:
        """Give out these blocks, which are free; their cached content is lost."""
        return [self._give_out(block_id) for block_id in block_ids]

    def hold(self, block_ids: Iterable[int]) -> None:
        """Add one reference to each block; free ones leave the ring."""
        for block_id in block_ids:
            if self.ref_cnt[block_id] == 0:
                self._unlink(block_id)
            self.ref_cnt[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """Drop one reference of each block, in the order in which they should be reused."""
        for block_id in block_ids:
            count = self.ref_cnt[block_id] - 1
            assert count >= 0, f"release of block {block_id} with ref_cnt {count + 1}"
            self.ref_cnt[block_id] = count
            if count == 0:
                front = self.block_hash[block_id] is None
                self._link(block_id, after=NULL_BLOCK if front else self._previous[NULL_BLOCK])

    def remember(self, block_id: int, block_hash: bytes) -> None:
        """Make the block findable unless one of equal content is."""
        if block_hash not in self.cached:
            self.cached[block_hash] = block_id
            self.num_changes += 1
            self.block_hash[block_id] = block_hash
            for observer in self.observers:
                observer.cached(block_id, block_hash)

    def forget(self, block_id: int) -> None:
        """Make the block's content unfindable; no effect when it was not."""
        block_hash = self.block_hash[block_id]
        if block_hash is not None:
            del self.cached[block_hash]
            self.num_changes += 1
            self.block_hash[block_id] = None
            for observer in self.observers:
                observer.evicted(block_id, block_hash)

    def forget_all(self) -> None:
        """Make no block findable; requests keep the blocks that they hold."""
        for block_id in list(self.cached.values()):
            self.forget(block_id)
            if self.ref_cnt[block_id] == 0:  # worthless now, while its memory is in use already
                self._unlink(block_id)
                self._link(block_id, after=NULL_BLOCK)

    def free_block_ids(self) -> list[int]:
        """Return the free blocks in the order in which they will be given out."""
        block_ids = []
        block_id = self._next[NULL_BLOCK]
        while block_id != NULL_BLOCK:
            block_ids.append(block_id)
            block_id = self._next[block_id]
            assert len(block_ids) < self.num_blocks, f"free ring is longer than {self.num_blocks}"
        return block_ids

    def _give_out(self, block_id: int) -> int:
        self._unlink(block_id)
        content = self.block_hash[block_id]
        self.forget(block_id)
        for observer in self.observers:
            observer.given_out(block_id, content)
        self.ref_cnt[block_id] = 1
        return block_id

    def _link(self, block_id: int, *, after: int) -> None:
        follower = self._next[after]
        self._next[after] = self._previous[follower] = block_id
        self._previous[block_id], self._next[block_id] = after, follower
        self.num_free += 1

    def _unlink(self, block_id: int) -> None:
        previous, follower = self._previous[block_id], self._next[block_id]
        self._next[previous], self._previous[follower] = follower, previous
        self.num_free -= 1
