"""Rows that are drafted for, one token after the other, until each has as many as it may get.

B rows of the token table, L of them still drafted for.
"""

from __future__ import annotations

import numpy as np

from quire.kernels.batch.token_table import IntArray, TokenTable


class DraftedRows:
    """Writes drafted tokens into the table, after the tokens that the rows have.

    Args:
        table: The token table, with room for the tokens; ``num_tokens`` stays as it is.
        rows: (B,) int32.
        most: (B,) int32, tokens that each may get, at least 1.

    Attributes:
        rows: (L,) int32, the rows that are still drafted for.
        lengths: (L,) int32, tokens of these rows, drafted ones included.
        counts: (B,) int32, drafted tokens of each.
    """

    def __init__(self, table: TokenTable, rows: IntArray, most: IntArray) -> None:
        self.rows = rows
        self.lengths: IntArray = table.num_tokens[rows]
        self.counts: IntArray = np.zeros(len(rows), np.int32)
        self._table = table
        self._most = most
        self._at = np.arange(len(rows), dtype=np.int32)  # in ``counts``
        self._depth = 0
        self._all_reach = _least(most)  # if all draws are possible

    @property
    def least_left(self) -> int:
        """Tokens that each row still drafted for may get at least."""
        return self._all_reach - self._depth

    def append(self, tokens: IntArray) -> IntArray | None:
        """Append a drafted token (L,) to each row still drafted for; -1 ends a row without one.

        Returns:
            Indices (int32) into ``rows`` as it was, of the rows still drafted for; None for all.
        """
        self._depth += 1
        if int(tokens.min()) < 0:
            kept = np.flatnonzero(tokens >= 0)
            self._keep(kept)
            tokens = tokens[kept]
        else:
            kept = None
        self._table.token_ids[self.rows, self.lengths] = tokens
        self.lengths = self.lengths + np.int32(1)
        self.counts[self._at] = self._depth
        if self._depth >= self._all_reach:
            going = np.flatnonzero(self._most > self._depth)
            self._keep(going)
            kept = going if kept is None else kept[going]
            self._all_reach = _least(self._most)
        return None if kept is None else kept.astype(np.int32)

    def _keep(self, at: np.ndarray) -> None:
        self.rows, self.lengths = self.rows[at], self.lengths[at]
        self._most, self._at = self._most[at], self._at[at]


def _least(counts: IntArray) -> int:
    return int(counts.min()) if len(counts) else 0
