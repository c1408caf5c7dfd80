"""Slots of a drafter's KV cache that are valid for a sequence, found without being told.

A drafter's cache has a block for each block of the target, and is read through the target's block
tables. Blocks are shared, copied, given back and given out again, and proposed tokens are refused;
each slot therefore keeps a hash of all the tokens up to its own that its KV was computed from. It
is valid for a sequence whose tokens up to there have the same hash. Equal hashes of other tokens
would cost accepted tokens, never a right answer. B rows of the token table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.kernels.batch.token_table import IntArray, TokenTable

Hashes = npt.NDArray[np.uint64]

#: Bytes that are kept for each slot.
SLOT_BYTES = 8
#: Positions of a row that are compared at once.
SPAN = 2048


@dataclass(slots=True)
class _Span:
    """Runs of positions of some rows, one after another.

    Attributes:
        ends: (B,) index after each row's run.
        hashes: (T,) hashes of the tokens up to each position.
        blocks: (T,) blocks that the positions lie in.
        slots: (T,) slots of the cache.
    """

    ends: npt.NDArray[np.int64]
    hashes: Hashes
    blocks: IntArray
    slots: npt.NDArray[np.int64]


class ValidSlots:
    """The slots of one cache, for the rows of a token table.

    Args:
        table: The token table, whose rows are begun before they are asked for.
        num_blocks: Blocks of the cache, the null block included.
        block_size: Tokens per block.
    """

    def __init__(self, table: TokenTable, num_blocks: int, block_size: int) -> None:
        self._table = table
        self._block_size = block_size
        # np.zeros maps pages on first touch: slots that are never used cost nothing.
        self._stored: Hashes = np.zeros(num_blocks * block_size, np.uint64)
        # What is known of each row: how many slots are valid from its start on, and their hash.
        self._num_valid: IntArray = np.zeros(len(table.num_tokens), np.int32)
        self._hashes: Hashes = np.zeros(len(table.num_tokens), np.uint64)

    def begin(self, row: int) -> None:
        """Add a row, or begin it again: its tokens or blocks differ from those before."""
        if row >= len(self._hashes):
            num_more = len(self._table.num_tokens) - len(self._hashes)
            self._num_valid = np.concatenate([self._num_valid, np.zeros(num_more, np.int32)])
            self._hashes = np.concatenate([self._hashes, np.zeros(num_more, np.uint64)])
        self._num_valid[row] = 0
        self._hashes[row] = 0

    def find(self, rows: IntArray) -> IntArray:
        """Return how many leading tokens of each row (B,) have a valid slot, at most all.

        Slots of blocks that the target has given back, because no token to come sees them, count
        as valid.
        """
        unfinished = rows
        while len(unfinished):
            starts = self._num_valid[unfinished]
            lengths = np.minimum(self._table.num_tokens[unfinished] - starts, SPAN)
            span = self._span(unfinished, starts, lengths)
            valid = (self._stored[span.slots] == span.hashes) | (span.blocks == 0)
            # Up to the first that is not: of each run, or after it.
            invalid = np.append((~valid).nonzero()[0], len(valid))
            begins = span.ends - lengths
            first = np.minimum(invalid[invalid.searchsorted(begins)], span.ends)
            counts = first - begins
            moved = counts > 0
            self._hashes[unfinished[moved]] = span.hashes[first[moved] - 1]
            self._num_valid[unfinished] += counts.astype(np.int32)
            unfinished = unfinished[counts == SPAN]
        found: IntArray = self._num_valid[rows]
        return found

    def fill(self, rows: IntArray, ends: IntArray) -> None:
        """Note that the KV of all tokens before ``ends`` (B,) lies in the rows' slots.

        The tokens may be proposed ones; the table has them.
        """
        starts = self._num_valid[rows]
        lengths = np.maximum(ends - starts, 0)
        span = self._span(rows, starts, lengths)
        self._stored[span.slots] = span.hashes
        num_valid = np.minimum(ends, self._table.num_tokens[rows])
        moved = num_valid > starts
        last = (span.ends - lengths + num_valid - starts)[moved] - 1
        self._hashes[rows[moved]] = span.hashes[last]
        self._num_valid[rows[moved]] = num_valid[moved]

    def forget(self, rows: IntArray, counts: Sequence[int]) -> None:
        """Note that the ``counts`` (B,) slots after the rows' tokens have been written over."""
        for row, count in zip(rows.tolist(), counts, strict=True):
            numbers, offsets = np.divmod(
                self._table.num_tokens[row] + np.arange(count), self._block_size
            )
            blocks = self._table.block_ids[row, numbers].astype(np.int64)
            self._stored[blocks * self._block_size + offsets] = 0

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Follow a copy of whole blocks ``(source, destination)``, in order."""
        blocks = self._stored.reshape(-1, self._block_size)
        for source, destination in pairs:
            blocks[destination] = blocks[source]

    def _span(self, rows: IntArray, starts: IntArray, lengths: IntArray) -> _Span:
        """Return the slots of runs of positions that begin where the rows' hashes are known."""
        table, block_size = self._table, self._block_size
        ends = np.cumsum(lengths, dtype=np.int64)
        token_rows = rows.repeat(lengths)
        positions = (starts - (ends - lengths)).repeat(lengths)
        positions += np.arange(len(positions))
        hashes = np.zeros(len(positions) + 1, np.uint64)
        mix(table.token_ids[token_rows, positions], positions).cumsum(out=hashes[1:])
        hashes[1:] += (self._hashes[rows] - hashes[ends - lengths]).repeat(lengths)
        numbers = positions // block_size
        blocks = table.block_ids[token_rows, numbers]
        slots = positions + (blocks - numbers) * block_size
        return _Span(ends, hashes[1:], blocks, slots)


def mix(tokens: IntArray, positions: npt.NDArray[np.int64]) -> Hashes:
    """Return 64 bits for each token at its position.

    The sum over all positions, modulo 2^64, is the hash of a sequence.
    """
    bits = (((positions + 1) << 32) + tokens).view(np.uint64)
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(32)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(29)
    return bits
