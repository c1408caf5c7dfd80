"""Tokens proposed by Medusa heads, each from the state that the last known token was drawn from.

B rows of the token table, D model dim of the target.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quire.core.model.forward_work import ForwardWork
from quire.kernels.backend import Array
from quire.kernels.batch.token_table import IntArray, TokenTable
from quire.models.draft_heads.medusa import MedusaHeads
from quire.speculative.drafters.target_states import ComputedStates, WantedStates
from quire.speculative.drafters.tree_drafting import DraftedTrees, draft_by_level
from quire.speculative.proposer import DraftDraw, Rank
from quire.speculative.token_tree import TreeShape


class MedusaProposer:
    """See :class:`~quire.speculative.drafters.target_states.StateReader`.

    Args:
        table: The token table of the target's runner.
        heads: The Medusa heads, on the target's backend.
    """

    wanted_states = WantedStates(of_every_position=False)

    def __init__(self, table: TokenTable, heads: MedusaHeads) -> None:
        self._table = table
        self._heads = heads
        self._work = ForwardWork()
        self._reserve(len(table.num_tokens))

    def begin(self, row: int, extra_keys: tuple[str, ...]) -> None:
        """Add a row without a known state."""
        if row >= len(self._positions):
            self._reserve(len(self._table.num_tokens))
        self._positions[row] = -1

    def observe(self, computed: ComputedStates) -> None:
        """Keep the state of each row."""
        backend = self._heads.backend
        backend.scatter_rows(computed.states, backend.from_numpy(computed.rows), self._states)
        self._positions[computed.rows] = computed.starts

    def fork(self, parent: int, child: int) -> None:
        """Copy the state of a row."""
        self._states[child] = self._states[parent]
        self._positions[child] = self._positions[parent]

    def forget(self, row: int) -> None:
        """Do nothing: a row is begun before it is asked for."""

    def take_work(self) -> ForwardWork:
        """Return what was computed since the last call, estimated."""
        work, self._work = self._work, ForwardWork()
        return work

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Do nothing: nothing is kept by block."""

    def propose(self, rows: IntArray, most: IntArray, draw: DraftDraw) -> IntArray:
        """Write proposals into the table, one head after the other; see the protocol."""
        table, heads = self._table, self._heads
        known = table.num_tokens[rows]
        counts = np.zeros(len(rows), np.int32)
        # The last token was drawn from this state, and by nothing else.
        live = np.flatnonzero(self._positions[rows] == known - 2)
        for head in range(heads.num_heads):
            live = live[most[live] > head]
            if not len(live):
                break
            at = heads.backend.from_numpy(np.ascontiguousarray(rows[live]))
            logits = self._logits(at, head)
            tokens = draw(logits, rows[live], known[live] + head)
            possible = tokens >= 0
            live = live[possible]
            table.token_ids[rows[live], known[live] + head] = tokens[possible]
            counts[live] += 1
        return counts

    def propose_trees(
        self, rows: IntArray, most: IntArray, shape: TreeShape, rank: Rank
    ) -> list[list[int]]:
        """Write trees into the table; all nodes of a level have its head's candidates."""
        heads = self._heads
        parents: list[list[int]] = [[] for _ in rows]
        live = np.flatnonzero(self._positions[rows] == self._table.num_tokens[rows] - 2)
        own = rows[live]
        depths = np.full(len(own), heads.num_heads, np.int32)
        drafted = DraftedTrees(self._table, own, most[live], depths, shape)

        def logits_of(level: int, at: npt.NDArray[np.int64]) -> Array:
            where = heads.backend.from_numpy(np.ascontiguousarray(own[at]))
            return self._logits(where, level)

        for i, found in zip(live.tolist(), draft_by_level(drafted, rank, logits_of), strict=True):
            parents[i] = found
        return parents

    def _logits(self, rows: Array, head: int) -> Array:
        self._work.add(self._heads.work(head, len(rows)))
        return self._heads.logits(self._states, rows, head)

    def _reserve(self, num_rows: int) -> None:
        """Make room for the states of that many rows."""
        backend, kept = self._heads.backend, getattr(self, "_states", None)
        states = backend.empty((num_rows, self._heads.hidden_size), backend.activation_dtype)
        positions = np.full(num_rows, -1, np.int32)
        if kept is not None:
            states[: len(self._positions)] = kept
            positions[: len(self._positions)] = self._positions
        self._states: Array = states
        self._positions: IntArray = positions
