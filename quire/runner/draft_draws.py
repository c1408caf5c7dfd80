"""Draws proposed tokens as the target will draw at their positions; see ``ChainDraw``."""

from __future__ import annotations

import numpy as np

from quire.kernels.backend import Array, SamplingBatch
from quire.kernels.token_table import IntArray
from quire.layers.sampler import FloatArray, Sampler
from quire.runner.sampling_state import SamplingState
from quire.speculative.rejection import DRAFT, stream_seed


class DraftDraws:
    """The draws of one engine's proposals.

    Args:
        sampling: Settings of the live rows.
        sampler: Draws.

    Attributes:
        rejecting: Rows that ask for acceptance by rejection.
        drafts: Of these, what this step's proposals came from, (V,) each.
    """

    def __init__(self, sampling: SamplingState, sampler: Sampler) -> None:
        self._sampling = sampling
        self._sampler = sampler
        self.rejecting: set[int] = set()
        self.drafts: dict[int, list[FloatArray]] = {}

    def __call__(self, logits: Array, rows: IntArray, lengths: IntArray) -> IntArray:
        """Draw one token for each sequence; see the protocol."""
        batch = self._sampling.draft_batch(rows, lengths)
        rejecting = [i for i, row in enumerate(rows.tolist()) if row in self.rejecting]
        if rejecting:
            # Their proposals must not depend on the numbers by which the target draws.
            own = self._sampler.select(logits, np.array(rejecting, np.int32))
            drawn_from = self._sampling.draft_batch(rows[rejecting], lengths[rejecting])
            for i, q in zip(rejecting, self._sampler.probabilities(own, drawn_from), strict=True):
                self.drafts.setdefault(int(rows[i]), []).append(q)
                batch.seed[i] = stream_seed(int(batch.seed[i]), DRAFT)
        return self._sampler.draw(logits, batch)

    def plain(self, rows: IntArray, lengths: IntArray) -> SamplingBatch | None:
        """Return what rows without rules are drawn with; None where any has some, or rejects."""
        if any(row in self.rejecting or self._sampling.has_rules(row) for row in rows.tolist()):
            return None
        return self._sampling.draft_batch(rows, lengths)
