"""Tokens and block tables of the live requests, one row each, as arrays; nothing about sampling.

A request keeps its row from its first plan until it is forgotten; a step only writes what is new.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]


class TokenTable:
    """Rows of token ids and block ids that grow on demand.

    Args:
        num_rows: Rows to begin with; doubled when more requests live at once.
        max_blocks: Block ids a row can hold, from the longest context.

    Attributes:
        token_ids: (rows, width) int32; the first ``num_tokens[row]`` entries count.
        num_tokens, num_prompt_tokens: (rows,) int32.
        block_ids: (rows, max_blocks) int32; 0 after ``num_blocks[row]``.
        num_blocks: (rows,) int32.
        adapters: (rows,) int32, the slot of each row's adapter; 0 for none.
        second_texts: (rows,) int32, where each row's second text begins; 0 for none.
        rows: Request id to row.
    """

    def __init__(self, num_rows: int, max_blocks: int) -> None:
        # np.zeros maps pages on first touch: rows that are never used cost nothing.
        self.token_ids: IntArray = np.zeros((num_rows, 256), np.int32)
        self.num_tokens: IntArray = np.zeros(num_rows, np.int32)
        self.num_prompt_tokens: IntArray = np.zeros(num_rows, np.int32)
        self.block_ids: IntArray = np.zeros((num_rows, max_blocks), np.int32)
        self.num_blocks: IntArray = np.zeros(num_rows, np.int32)
        self.adapters: IntArray = np.zeros(num_rows, np.int32)
        self.second_texts: IntArray = np.zeros(num_rows, np.int32)
        self.rows: dict[str, int] = {}
        self._free = list(range(num_rows - 1, -1, -1))

    def add(self, request_id: str, token_ids: list[int] | IntArray, num_prompt_tokens: int) -> int:
        """Give ``request_id`` a row of ``token_ids``, no blocks and no adapter; return the row."""
        assert request_id not in self.rows, f"{request_id} already has row {self.rows[request_id]}"
        if not self._free:
            self._grow_rows()
        row = self.rows[request_id] = self._free.pop()
        count = len(token_ids)
        self._reserve(count + 1)
        self.token_ids[row, :count] = token_ids
        self.num_tokens[row] = count
        self.num_prompt_tokens[row] = num_prompt_tokens
        self.block_ids[row, : self.num_blocks[row]] = 0
        self.num_blocks[row] = self.adapters[row] = self.second_texts[row] = 0
        return row

    def fork(self, parent_id: str, child_id: str) -> int:
        """Give ``child_id`` a row with the parent's tokens and block table; return the row."""
        parent = self.rows[parent_id]
        tokens = self.token_ids[parent, : self.num_tokens[parent]].copy()
        blocks = self.block_ids[parent, : self.num_blocks[parent]].copy()
        row = self.add(child_id, tokens, int(self.num_prompt_tokens[parent]))
        self.adapters[row] = self.adapters[parent]
        self.append_blocks(row, blocks)
        return row

    def remove(self, request_id: str) -> int | None:
        """Free the row of ``request_id`` and return it; None when there is none."""
        row = self.rows.pop(request_id, None)
        if row is not None:
            self._free.append(row)
        return row

    def append_blocks(self, row: int, block_ids: list[int] | IntArray) -> None:
        """Append to the block table of ``row``."""
        start = int(self.num_blocks[row])
        end = start + len(block_ids)
        assert end <= self.block_ids.shape[1], f"{end} blocks of {self.block_ids.shape[1]}"
        self.block_ids[row, start:end] = block_ids
        self.num_blocks[row] = end

    def append_tokens(self, rows: IntArray, token_ids: IntArray) -> None:
        """Append one token to each of ``rows`` (B,)."""
        at = self.num_tokens[rows]
        self._reserve(int(at.max(initial=0)) + 1)
        self.token_ids[rows, at] = token_ids
        self.num_tokens[rows] = at + 1

    def reserve(self, rows: IntArray, counts: IntArray) -> None:
        """Make room for ``counts`` (B,) tokens after those of ``rows`` (B,)."""
        self._reserve(int((self.num_tokens[rows] + counts).max(initial=0)))

    def tokens(self, row: int) -> IntArray:
        """Return the tokens of ``row`` as a view."""
        return self.token_ids[row, : self.num_tokens[row]]

    def _reserve(self, width: int) -> None:
        if width > self.token_ids.shape[1]:
            rows, old = self.token_ids.shape
            wider = np.zeros((rows, max(width, 2 * old)), np.int32)
            wider[:, :old] = self.token_ids
            self.token_ids = wider

    def _grow_rows(self) -> None:
        count = len(self.num_tokens)
        self._free.extend(range(2 * count - 1, count - 1, -1))
        names = ("token_ids", "num_tokens", "num_prompt_tokens", "block_ids", "num_blocks")
        for name in (*names, "adapters", "second_texts"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.zeros_like(old)]))
