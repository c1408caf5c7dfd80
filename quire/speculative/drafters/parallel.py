"""Tokens proposed by heads that draft several at once: P-EAGLE.

After the pairs of known tokens come pairs of a mask, one for each further token of a draft, all in
one forward; the mask at position p sees the pairs before it, known or not, and predicts token
p + 1. What masks leave in the cache is written over by the pairs of real tokens, and only the masks
attend to it. B rows of the token table, V vocabulary of the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.core.model.forward_work import PassShape
from quire.core.speculative_config import MAX_TOKENS as MAX_DRAFTED
from quire.kernels.backend import Array, KVCache
from quire.kernels.batch.token_table import IntArray, TokenTable
from quire.models.draft_heads.recurrent import RecurrentHead
from quire.speculative.drafters.draft_prefill import MOST_PAIRS
from quire.speculative.drafters.drafted_rows import DraftedRows
from quire.speculative.drafters.hidden_state_buffer import Places
from quire.speculative.drafters.recurrent import RecurrentProposer
from quire.speculative.drafters.tree_drafting import DraftedTrees, draft_by_level
from quire.speculative.proposer import DraftDraw, Rank
from quire.speculative.token_tree import TreeShape

#: Rows of logits of one forward: those of the longest draft.
MAX_LOGITS = MAX_DRAFTED


@dataclass(frozen=True, slots=True)
class _Depths:
    """Logits of all tokens of some drafts.

    Attributes:
        live: (B,) whether all known pairs of a row are computed; L of them are.
        counts: (L,) tokens of each draft.
        logits: Logits by depth, each of the drafts that reach it, in the order of the rows.
    """

    live: npt.NDArray[np.bool_]
    counts: IntArray
    logits: list[Array]

    def at(self, depth: int, rows: npt.NDArray[np.int64]) -> Array:
        """Return the logits of a depth for some of the L rows that reach it, ascending."""
        own, members = self.logits[depth], np.flatnonzero(self.counts > depth)
        # A slice of the head's own array, unless drafts have ended before their time.
        return own if len(rows) == len(members) else own[np.searchsorted(members, rows)]


class ParallelProposer(RecurrentProposer):
    """See :class:`RecurrentProposer`; the head has a mask.

    Its buffers have room for :data:`MAX_LOGITS` masks besides ``max_tokens``.
    """

    def __init__(
        self,
        table: TokenTable,
        head: RecurrentHead,
        kv_cache: KVCache,
        max_model_len: int,
        max_tokens: int = MOST_PAIRS,
        shape: PassShape | None = None,
    ) -> None:
        super().__init__(table, head, kv_cache, max_model_len, max_tokens, shape)
        assert head.mask is not None, "a head that drafts one token after the other"
        self._mask_id = head.mask.token_id
        self._mask_place = self._log.keep_always(head.mask.state)

    def propose_trees(
        self, rows: IntArray, most: IntArray, shape: TreeShape, rank: Rank
    ) -> list[list[int]]:
        """Write trees into the table; all nodes of a level have the same candidates."""
        parents: list[list[int]] = [[] for _ in rows]
        most = np.minimum(most, self._max_model_len - self._table.num_tokens[rows])
        ready, places = self._ready(rows, most)
        reached = np.minimum(most[ready], np.int32(shape.depth))
        for part in _groups(reached):
            own = ready[part]
            depths = self._compute(rows[own], places[part], reached[part])
            own = own[depths.live]
            drafted = DraftedTrees(self._table, rows[own], most[own], depths.counts, shape)
            trees = draft_by_level(drafted, rank, depths.at)
            for i, found in zip(own.tolist(), trees, strict=True):
                parents[i] = found
        return parents

    def _draft(
        self, rows: IntArray, places: Sequence[Places], most: IntArray, draw: DraftDraw
    ) -> IntArray:
        counts = np.zeros(len(rows), np.int32)
        for part in _groups(most):
            depths = self._compute(rows[part], places[part], most[part])
            drafted = DraftedRows(self._table, rows[part][depths.live], depths.counts)
            going = np.arange(len(drafted.rows))
            for depth in range(len(depths.logits)):
                logits = depths.at(depth, going)
                went_on = drafted.append(draw(logits, drafted.rows, drafted.lengths))
                if not len(drafted.rows):
                    break
                if went_on is not None:
                    going = going[went_on]
            counts[part][depths.live] = drafted.counts
        return counts

    def _compute(self, rows: IntArray, places: Sequence[Places], counts: IntArray) -> _Depths:
        """Compute the pairs that wait, and masks after those of rows that are complete.

        Args:
            rows: (B,) rows of the table.
            places: Places of the states of each row's pairs that wait.
            counts: (B,) tokens to be drafted for each; :data:`MAX_LOGITS` in all.
        """
        pairs = self._take(rows, places)
        part = pairs.lengths > 0
        ahead: IntArray = np.where(pairs.live, counts - 1, 0).astype(np.int32)
        lengths = (pairs.lengths + ahead)[part]
        batch = self._batch(rows[part], pairs.starts[part], pairs.begins[part], lengths)
        lasts = (batch.query_start_loc[1:] - 1 - ahead[part])[pairs.live[part]]
        counts = counts[pairs.live]
        reaching = [lasts[counts > depth] + depth for depth in range(counts.max(initial=0))]
        masked = np.concatenate([np.zeros(0, np.int32), *reaching[1:]])
        batch.input_ids[masked] = self._mask_id
        batch.logits_indices = np.concatenate([np.zeros(0, np.int32), *reaching]).astype(np.int32)
        with_masks = [
            np.concatenate([own, np.full(count, self._mask_place)])
            for own, count in zip(pairs.places, ahead.tolist(), strict=True)
        ]
        _, logits = self._compute_pairs(batch, pairs, with_masks)
        for row, count in zip(rows.tolist(), ahead.tolist(), strict=True):
            known = int(self._table.num_tokens[row])
            self._keys.spoil(row, known, known + count)
        ends = np.cumsum([len(at) for at in reaching]).tolist()
        slices = zip([0, *ends], ends, strict=False)
        return _Depths(pairs.live, counts, [logits[start:end] for start, end in slices])


def _groups(counts: IntArray) -> Iterator[slice]:
    """Divide rows into runs of :data:`MAX_LOGITS` tokens at most, by the counts of each."""
    start, total = 0, 0
    for i, count in enumerate(counts.tolist()):
        if total + count > MAX_LOGITS:
            yield slice(start, i)
            start, total = i, 0
        total += count
    if len(counts) > start:
        yield slice(start, len(counts))
