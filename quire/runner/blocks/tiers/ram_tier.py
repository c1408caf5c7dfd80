"""KV blocks in the machine's memory; the least recently used are evicted for others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from quire.core.metrics import Samples
from quire.runner.blocks.tiers.sealed_block import Bytes


class RamTier:
    """Blocks of equal size, by content hash.

    Args:
        num_blocks: Blocks that the tier holds, at most.
        block_bytes: Bytes of each block.
    """

    label = "ram"

    def __init__(self, num_blocks: int, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        # Pages that nothing was written to take no memory.
        self._memory: Bytes = np.empty((num_blocks, block_bytes), np.uint8)
        self._rows: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_blocks(self) -> int:
        """Number of blocks that the tier holds now."""
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Bytes of these blocks."""
        return len(self._rows) * self._block_bytes

    def __contains__(self, block_hash: bytes) -> bool:
        """Whether the tier holds a block."""
        return block_hash in self._rows

    def skip(self, is_cached: Callable[[bytes], bool]) -> None:
        """Do nothing: no other engine sends blocks to this tier."""

    def is_coming(self, block_hash: bytes) -> bool:
        """Return False: no other engine sends blocks to this tier."""
        return False

    def put(self, block_hash: bytes, data: Bytes) -> bool:
        """Copy a block, and evict the least recently used one for it; return whether it is new."""
        row = self._rows.pop(block_hash, None)
        is_new = row is None
        if row is None:
            if not self._free and not self._rows:
                return False
            row = self._free.pop() if self._free else self._rows.popitem(last=False)[1]
            self._memory[row] = data
        self._rows[block_hash] = row
        return is_new

    def get(self, block_hash: bytes) -> Bytes:
        """Return a block, valid until the next :meth:`put`, and record its use.

        Raises:
            KeyError: The tier does not hold the block.
        """
        self._rows.move_to_end(block_hash)
        found: Bytes = self._memory[self._rows[block_hash]]
        return found

    def samples(self) -> Samples:
        """Return no counts: no other engine sends blocks to this tier."""
        return {}

    def close(self) -> None:
        """Do nothing: the tier has no connections."""

    def clear(self) -> None:
        """Forget all blocks."""
        self._free += self._rows.values()
        self._rows.clear()
