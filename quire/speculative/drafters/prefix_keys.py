"""First position from which a drafter's cache holds a row's own KV, found by hashes of prefixes.

A drafter reads its cache through the target's block tables: blocks are shared, copied, given back
and given out again. Each slot keeps a hash of all the tokens up to its own that its KV was computed
for. Equal hashes of other tokens would cost accepted tokens, never a right answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quire.kernels.batch.token_table import TokenTable
from quire.speculative.drafters.valid_slots import Hashes, mix


class SlotKeys:
    """The slots of one cache, for the rows of a token table.

    Args:
        table: Tokens and blocks of the rows.
        num_blocks: Blocks of the cache, the null block included.
        block_size: Tokens per block.
    """

    def __init__(self, table: TokenTable, num_blocks: int, block_size: int) -> None:
        self._table = table
        self._block_size = block_size
        # np.zeros maps pages on first touch: slots that are never used cost nothing.
        self._stored: Hashes = np.zeros(num_blocks * block_size, np.uint64)
        # Rows whose hashes are not stored yet, from one position to another.
        self._unstored: dict[int, tuple[int, int]] = {}

    def first_valid(self, row: int, end: int) -> int:
        """Return the position from which on all slots up to ``end`` hold the row's own KV.

        It is the first of a block, or ``end`` itself where the slot before it does not.
        """
        for other in list(self._unstored):
            self.store(other)
        slots, hashes = self._positions(row, end)
        invalid = np.flatnonzero((self._stored[slots] != hashes) | (slots < self._block_size))
        if not len(invalid):
            return 0
        first = int(invalid[-1]) + 1
        return min(-(-first // self._block_size) * self._block_size, end)

    def fill(self, row: int, start: int, end: int) -> None:
        """Note that the KV of positions ``start`` to ``end`` was computed.

        It is stored when a row is looked up, or this one is released: a hash covers all tokens
        before.
        """
        known = self._unstored.get(row)
        if known is not None and known[1] != start:
            self.store(row)
            known = None
        self._unstored[row] = (start if known is None else known[0], end)

    def spoil(self, row: int, start: int, end: int) -> None:
        """Note that positions ``start`` to ``end``, none of them filled, hold no KV of tokens."""
        positions = np.arange(start, end)
        blocks = self._table.block_ids[row, positions // self._block_size].astype(np.int64)
        self._stored[blocks * self._block_size + positions % self._block_size] = 0

    def store(self, row: int) -> None:
        """Store what was noted of a row, which has its tokens and blocks still."""
        known = self._unstored.pop(row, None)
        if known is not None:
            start, end = known
            slots, hashes = self._positions(row, end)
            self._stored[slots[start:]] = hashes[start:]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Follow a copy of whole blocks ``(source, destination)``, in order."""
        for row in list(self._unstored):
            self.store(row)
        blocks = self._stored.reshape(-1, self._block_size)
        for source, destination in pairs:
            blocks[destination] = blocks[source]

    def _positions(self, row: int, end: int) -> tuple[npt.NDArray[np.int64], Hashes]:
        """Return slot and hash of the positions before ``end``."""
        table, block_size = self._table, self._block_size
        positions = np.arange(end)
        blocks = table.block_ids[row, : -(-end // block_size)].astype(np.int64)
        slots = blocks[positions // block_size] * block_size + positions % block_size
        hashes: Hashes = np.cumsum(mix(table.token_ids[row, :end], positions), dtype=np.uint64)
        return slots, hashes
