"""Counts what goes through a drafter, for the estimate of a step's work; it measures nothing."""

from __future__ import annotations

import numpy as np

from quire.core.model.forward_work import ForwardWork, Passes, PassShape
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.batch.token_table import IntArray


class DraftWork:
    """Adds up the passes of one drafter.

    Args:
        shape: Operations and bytes of a pass.
    """

    def __init__(self, shape: PassShape) -> None:
        self._shape = shape
        self._passes = Passes()

    def add(self, batch: ForwardBatch) -> None:
        """Count a pass of a batch that is on the host; all its rows are trees or none is."""
        passes, num_tokens = self._passes, len(batch.input_ids)
        context = int(np.add.reduce(batch.seq_lens))
        passes.count += 1
        passes.tokens += num_tokens
        passes.context += context
        passes.logits += len(batch.logits_indices)
        if num_tokens == len(batch.seq_lens) and batch.tree_slots is None:
            passes.pairs += context
            return
        counts = np.diff(batch.query_start_loc).astype(np.int64)
        if batch.tree_slots is None or batch.tree_starts is None:
            passes.pairs += int((counts * batch.seq_lens - counts * (counts - 1) // 2).sum())
        else:
            passes.pairs += int((counts * batch.tree_starts).sum())
            passes.pairs += int((batch.tree_slots >= 0).sum())

    def add_chain(self, seq_lens: IntArray, steps: int) -> None:
        """Count ``steps`` passes of one token a row; the first sees ``seq_lens`` (L,) tokens."""
        passes, num_rows = self._passes, len(seq_lens)
        tokens = num_rows * steps
        context = steps * int(np.add.reduce(seq_lens)) + num_rows * steps * (steps - 1) // 2
        passes.count += steps
        passes.tokens += tokens
        passes.logits += tokens
        passes.context += context
        passes.pairs += context

    def take(self) -> ForwardWork:
        """Return what was counted since the last call."""
        passes, self._passes = self._passes, Passes()
        return self._shape.work(passes)
