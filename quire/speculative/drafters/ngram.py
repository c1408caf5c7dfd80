"""Proposes what followed the same tokens before: in the request itself, or in earlier outputs.

Nothing is computed by a model. What is looked up, how far and how much is native/runtime's.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from quire.kernels.batch.token_table import IntArray, TokenTable
from quire.kernels.cpu.native import native
from quire.speculative.proposer import DraftDraw

#: Tokens that must be the same, at least, and that are compared at most.
SHORTEST, LONGEST = 2, 32
#: Tokens of earlier outputs that are kept, of all tenants: some 20 MiB, at most 42.
STORE_TOKENS = 1 << 18
#: Operations of automata in one call, about 10 a token: less than a millisecond.
OPERATIONS = 1 << 15


def lookup_lengths(shortest: int | None, longest: int | None) -> tuple[int, int]:
    """Return both limits of a match; where one is not given, the default that fits the other."""
    if shortest is None:
        shortest = SHORTEST if longest is None else min(SHORTEST, longest)
    return shortest, max(LONGEST, shortest) if longest is None else longest


class NgramProposer:
    """Looks for the longest suffix of a row that occurred before, and copies what followed it.

    The last occurrence counts. A match of n tokens proposes at most n + n // 2, so that text that
    does not repeat gets few; where it runs into the end of the row, it continues with what it has
    proposed. Earlier outputs count where they have a longer match than the row itself: a
    request's output is kept when it is forgotten, for requests of the same tenant.

    A row takes about 50 bytes a token in ordinary text, and at most 80, while it lives; twice that
    before its vectors are full. Calls do a bounded amount of work: a long prompt is looked at in
    several of them, and its row gets nothing until then. Only rows that are proposed for are
    looked at.

    Args:
        table: The token table, whose rows are looked up.
        longest, shortest: Tokens that are compared, at most, and that must be the same, at least;
            vLLM's ``prompt_lookup_max`` and ``prompt_lookup_min``. 1 <= shortest <= longest.
        store_tokens: Tokens kept of earlier outputs, of all tenants; the oldest are dropped first.
            0 keeps none. Each tenant's first tokens count for 64 more.
        operations: Operations of automata in one call, at most.

    Source: suffix automata as of Blumer et al. 1985; proposals from the text itself as in prompt
    lookup decoding (Saxena 2023).
    """

    def __init__(
        self,
        table: TokenTable,
        *,
        longest: int = LONGEST,
        shortest: int = SHORTEST,
        store_tokens: int = STORE_TOKENS,
        operations: int = OPERATIONS,
    ) -> None:
        self._table = table
        self.lookup: Any = native.NgramLookup(shortest, longest, store_tokens, operations)

    def begin(self, row: int, extra_keys: tuple[str, ...]) -> None:
        """Add a row; its present tokens are its prompt, or output that was kept before."""
        # The keys' text is the client's, of any length.
        tenant = blake2b(repr(extra_keys).encode(), digest_size=16).hexdigest()
        self.lookup.begin(row, tenant, int(self._table.num_tokens[row]))

    def propose(self, rows: IntArray, most: IntArray, draw: DraftDraw) -> IntArray:
        """Write proposed tokens into the table; see the protocol. Nothing is drawn."""
        table = self._table
        counts = np.zeros(len(rows), np.int32)
        width = table.token_ids.shape[1]
        known = table.num_tokens[rows]
        self.lookup.propose(table.token_ids, width, rows, known, most, counts, len(rows))
        return counts

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Do nothing: nothing is kept by block."""

    def forget(self, row: int) -> None:
        """Keep a row's output for its tenant, and release the row."""
        self.lookup.forget(row, self._table.tokens(row), int(self._table.num_tokens[row]))
