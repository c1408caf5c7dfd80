"""Tokens proposed by a model: a smaller one with the target's vocabulary, or the target rounded.

Its KV cache has a block for each block id of the target and is read through the target's block
tables. So prefix hits, forks, preemption and refused proposals need nothing of it. V vocabulary of
the target, W of the draft, B rows of the token table.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from quire.core.model.forward_work import ForwardWork, decoder_shape
from quire.kernels.backend import Array, KVCache
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.batch.ragged_batch import ragged_batch, single_batch
from quire.kernels.batch.token_table import IntArray, TokenTable
from quire.kernels.batch.tree_batch import add_trees
from quire.models.decoder import Decoder
from quire.speculative.drafters.draft_prefill import MOST_TOKENS, DraftPrefill
from quire.speculative.drafters.draft_work import DraftWork
from quire.speculative.drafters.drafted_rows import DraftedRows
from quire.speculative.drafters.tree_drafting import TreeDrafting
from quire.speculative.drafters.valid_slots import ValidSlots
from quire.speculative.proposer import DraftDraw, Rank
from quire.speculative.token_tree import TreeShape


class DraftModelProposer:
    """See :class:`~quire.speculative.proposer.Proposer`.

    Args:
        table: The token table of the target's runner.
        model: The draft, on the target's backend.
        kv_cache: The draft's cache, with as many blocks of the same size as the target's.
        vocab_size: V; ids are equal in both, as far as both have them.
        max_model_len: Rows of more tokens get no proposals.
        max_tokens: Tokens that the model's buffers have room for.
    """

    def __init__(
        self,
        table: TokenTable,
        model: Decoder,
        kv_cache: KVCache,
        *,
        vocab_size: int,
        max_model_len: int,
        max_tokens: int = MOST_TOKENS,
    ) -> None:
        self._table = table
        self._model = model
        self._kv_cache = kv_cache
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._block_size = kv_cache.spec.block_size
        self._slots = ValidSlots(table, kv_cache.num_blocks, self._block_size)
        self._prefill = DraftPrefill(max_tokens)
        shape = decoder_shape(model.config, model.pass_bytes, kv_cache.spec.token_bytes)
        self._work = DraftWork(shape)
        self._logits: Array | None = None

    def begin(self, row: int, extra_keys: tuple[str, ...]) -> None:
        """Add a row; its KV may be in the cache already, and is found by its tokens."""
        self._slots.begin(row)

    def forget(self, row: int) -> None:
        """Do nothing: what is kept is of blocks."""

    def step_took(self, seconds: float) -> None:
        """Compute more or fewer known tokens at once by how long the target's steps take."""
        self._prefill.step_took(seconds)

    def take_work(self) -> ForwardWork:
        """Return what was computed since the last call, estimated."""
        return self._work.take()

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the draft's blocks as the target's were."""
        self._kv_cache.copy_blocks(pairs)
        self._slots.copy_blocks(pairs)

    def propose(self, rows: IntArray, most: IntArray, draw: DraftDraw) -> IntArray:
        """Write proposals into the table; see the protocol."""
        counts = np.zeros(len(rows), np.int32)
        most = np.minimum(most, self._max_model_len - self._table.num_tokens[rows])
        within = np.flatnonzero(most > 0)
        if len(within):
            counts[within] = self._draft(rows[within], most[within], draw)
        return counts

    def propose_trees(
        self, rows: IntArray, most: IntArray, shape: TreeShape, rank: Rank
    ) -> list[list[int]]:
        """Write trees into the table; see the protocol."""
        parents: list[list[int]] = [[] for _ in rows]
        most = np.minimum(most, self._max_model_len - self._table.num_tokens[rows])
        within = np.flatnonzero(most > 0)
        if not len(within):
            return parents
        logits, ends = self._compute_known(rows[within])
        self._slots.fill(rows[within], ends)
        live = within[ends == self._table.num_tokens[rows[within]]]
        if logits is None:
            return parents
        own = rows[live]
        drafting = TreeDrafting(self._table, own, most[live], shape, rank)
        while drafting.add(logits):
            level = drafting.next_level()
            at = own[level.indices]
            batch = ragged_batch(self._table, self._block_size, at, level.starts, level.counts)
            trees = level.trees(self._table.num_tokens[at])
            add_trees(batch, self._block_size, trees)
            batch.logits_indices = np.arange(len(level.paths), dtype=np.int32)
            logits = self._compute(batch)
        self._slots.forget(own, drafting.num_slots())
        for i, found in zip(live.tolist(), drafting.finish(), strict=True):
            parents[i] = found
        return parents

    def _compute_known(self, rows: IntArray) -> tuple[Array | None, IntArray]:
        """Compute known tokens: those that rows lack, long prompts in several steps.

        Returns:
            The logits after the last known token of each row that gets that far, or None where
            none does; and each row's position (B,) before which all is computed then.
        """
        known = self._table.num_tokens[rows]
        # The last known token is computed in any case: its logits are wanted.
        starts = np.minimum(self._slots.find(rows), known - 1)
        lengths = self._prefill.share(known - starts)
        ends = starts + lengths
        part = lengths > 0
        batch = ragged_batch(self._table, self._block_size, rows[part], starts[part], lengths[part])
        batch.logits_indices = batch.logits_indices[ends[part] == known[part]]
        begin = time.perf_counter()
        logits = self._compute(batch)
        self._prefill.computed(len(batch.input_ids), time.perf_counter() - begin)
        return logits, ends

    def _draft(self, rows: IntArray, most: IntArray, draw: DraftDraw) -> IntArray:
        table = self._table
        counts = np.zeros(len(rows), np.int32)
        logits, ends = self._compute_known(rows)
        live = ends == table.num_tokens[rows]
        drafted = DraftedRows(table, rows[live], most[live])
        while logits is not None:
            drafted.append(draw(logits, drafted.rows, drafted.lengths))
            if not len(drafted.rows):
                break
            batch = single_batch(table, self._block_size, drafted.rows, drafted.lengths - 1)
            logits = self._compute(batch)
        counts[live] = drafted.counts
        ends[live] += np.maximum(drafted.counts - 1, 0)
        self._slots.fill(rows, ends)
        return counts

    def _compute(self, batch: ForwardBatch) -> Array | None:
        """Compute a batch; return its logits, (L, V), or None where none are wanted."""
        model = self._model
        draft_size = model.config.vocab_size
        if draft_size < self._vocab_size:
            np.minimum(batch.input_ids, draft_size - 1, out=batch.input_ids)
        self._work.add(batch)
        hidden = model.forward(model.backend.upload(batch), self._kv_cache)
        if not len(hidden):
            return None
        logits = model.logits(hidden)
        if draft_size == self._vocab_size:
            return logits
        return self._fitted(logits)

    def _fitted(self, logits: Array) -> Array:
        """Return logits (L, W) as (L, V): cut, or with ids that the draft does not have."""
        num_rows, common = len(logits), min(self._model.config.vocab_size, self._vocab_size)
        if self._logits is None or len(self._logits) < num_rows:
            self._logits = self._model.backend.empty((num_rows, self._vocab_size))
        fitted = self._logits[:num_rows]
        fitted[:, :common] = logits[:, :common]
        fitted[:, common:] = -np.inf
        return fitted
