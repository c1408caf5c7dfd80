"""Arrays of a step from its plan: it keeps the live requests' rows and cuts batches out of them.

It computes nothing of the model and draws no tokens. B requests, T tokens.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.core.step import NewRequest, ScheduledRequest, SchedulerOutput
from quire.kernels.backend import Backend
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.batch.ragged_batch import ragged_batch
from quire.kernels.batch.token_table import IntArray, TokenTable
from quire.kernels.batch.tree_batch import BatchTree, add_trees, tree_paths
from quire.runner.step.picture_positions import PicturePlaces


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Neighbouring rows of a request whose embedding is given instead of looked up.

    Attributes:
        index: Index into the plan's ``scheduled``.
        first: Index of the first row among the request's rows in the step.
        embeddings: (rows, D) float32 on the host.
    """

    index: int
    first: int
    embeddings: npt.NDArray[np.float32]


class InputBatch:
    """Rows of live requests, which turn plans into :class:`ForwardBatch` by few numpy calls.

    Args:
        backend: The backend that the arrays are for.
        num_rows: Number of requests expected to live at once.
        max_model_len: Tokens of the longest request.
        block_size: Tokens per KV block.
    """

    def __init__(
        self, backend: Backend, *, num_rows: int, max_model_len: int, block_size: int
    ) -> None:
        self.table = TokenTable(num_rows, -(-max_model_len // block_size) + 1)
        self._backend = backend
        self._block_size = block_size
        self._places = PicturePlaces()

    def add(self, request: NewRequest, adapter: int = 0) -> int:
        """Add a request that is new, or resumed after preemption; return its row.

        Args:
            request: A plan's request.
            adapter: Slot of the request's adapter, 0 for none.
        """
        # A preempted request returns under its own id, in the plan that forgets it or later.
        self.table.remove(request.request_id)
        row = self.table.add(request.request_id, request.token_ids, request.num_prompt_tokens)
        self.table.append_blocks(row, request.block_ids)
        self.table.adapters[row] = adapter
        self.table.second_texts[row] = request.source.second_text or 0
        self._places.set(row, request.source.pictures)
        return row

    def fork(self, parent_id: str, child_id: str) -> int:
        """Add a request with the tokens and blocks of another one; return its row."""
        row = self.table.fork(parent_id, child_id)
        self._places.fork(self.table.rows[parent_id], row)
        return row

    def update_blocks(self, plan: SchedulerOutput, broken: Container[str] = ()) -> None:
        """Apply the plan's changes of block tables; ``broken`` requests need none."""
        table = self.table
        for request_id, index, block_id in plan.replaced_blocks:
            if request_id not in broken:
                table.block_ids[table.rows[request_id], index] = block_id
        for request in plan.scheduled:
            if request.new_block_ids and request.request_id not in broken:
                table.append_blocks(table.rows[request.request_id], request.new_block_ids)

    def build(
        self,
        scheduled: Sequence[ScheduledRequest],
        prompt_rows: Sequence[tuple[int, int, int]] = (),
        num_proposed: IntArray | None = None,
        parents: Mapping[int, Sequence[int]] | None = None,
        given: Sequence[GivenRows] = (),
    ) -> ForwardBatch:
        """Lay the step's rows out, requests in the plan's order.

        Args:
            scheduled: Requests that all have a row, at least one.
            prompt_rows: ``(i, first, count)``: the states of ``count`` rows of ``scheduled[i]``,
                from its row ``first`` on, are wanted.
            num_proposed: (B,) int32, proposed tokens of the table that follow each request's own
                tokens and are computed with them; None for none at all.
            parents: Parents of the proposed tokens that form a tree, by row of the table; the same
                as in :func:`~quire.kernels.batch.tree_batch.tree_paths`.
            given: Rows whose embedding is not looked up.

        Returns:
            The step; ``logits_indices`` are the rows of the last own token and of the proposed ones
            of each request that samples, then ``prompt_rows``.
        """
        table = self.table
        rows = np.array([table.rows[r.request_id] for r in scheduled], np.int32)
        computed = np.array([r.num_computed_tokens for r in scheduled], np.int32)
        lengths = np.array([r.num_scheduled_tokens for r in scheduled], np.int32)
        samples = np.array([r.samples for r in scheduled], np.bool_)
        if num_proposed is not None:
            lengths += num_proposed
        step = ragged_batch(table, self._block_size, rows, computed, lengths)
        adapters = table.adapters[rows]
        if adapters.any():
            step.adapters = adapters
        seconds = table.second_texts[rows]
        if seconds.any():
            seconds[seconds == 0] = np.iinfo(np.int32).max
            step.token_types = (step.positions >= np.repeat(seconds, lengths)).astype(np.int32)
        if parents:
            trees = [
                BatchTree(i, int(table.num_tokens[row]), tree_paths(parents[row]))
                for i, row in enumerate(rows.tolist())
                if row in parents
            ]
            add_trees(step, self._block_size, trees)
        self._places.arrange(step, rows, computed)
        wanted = [step.logits_indices[samples]]
        if num_proposed is not None:
            wanted[0] = _last_rows(wanted[0], num_proposed[samples] + 1)
        step.num_drawn = len(wanted[0])
        for i, first, count in prompt_rows:
            first += int(step.query_start_loc[i])
            wanted.append(np.arange(first, first + count, dtype=np.int32))
        step.logits_indices = np.concatenate(wanted)
        if given:
            starts = [int(step.query_start_loc[part.index]) + part.first for part in given]
            places = [
                np.arange(start, start + len(part.embeddings), dtype=np.int32)
                for start, part in zip(starts, given, strict=True)
            ]
            step.embedding_rows = np.concatenate(places)
            step.embeddings = np.concatenate([part.embeddings for part in given])
        return self._backend.upload(step)


def _last_rows(ends: IntArray, counts: IntArray) -> IntArray:
    """Return, for each of ``ends`` (B,), the last ``counts`` (B,) rows up to it, in order."""
    before = np.cumsum(counts, dtype=np.int32)
    rows: IntArray = np.repeat(ends + np.int32(1) - before, counts)
    rows += np.arange(len(rows), dtype=np.int32)
    return rows
