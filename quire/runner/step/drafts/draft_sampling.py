"""Draws of proposed tokens like the target's at their positions; see ``ChainDraw``."""

from __future__ import annotations

import numpy as np

from quire.kernels.backend import Array
from quire.kernels.batch.sampling_batch import SamplingBatch
from quire.kernels.batch.token_table import IntArray
from quire.layers.sampler import FloatArray, Sampler
from quire.runner.step.sampling_state import SamplingState
from quire.speculative.proposer import Chances
from quire.speculative.rejection import DRAFT, Rejection, stream_seed


class DraftDraws:
    """The draws of one engine's proposals.

    Args:
        sampling: Settings of the live rows.
        sampler: Sampler that draws.

    Attributes:
        rejecting: Rows that ask for acceptance by rejection.
        drafts: Probabilities (V,) that each of these rows' proposals of this step was drawn from.
    """

    def __init__(self, sampling: SamplingState, sampler: Sampler) -> None:
        self._sampling = sampling
        self._sampler = sampler
        self.rejecting: set[int] = set()
        self.drafts: dict[int, list[FloatArray]] = {}
        # Rows and batch of the last draw, if that was a plain one.
        self._last: tuple[IntArray, SamplingBatch] | None = None

    def __call__(self, logits: Array, rows: IntArray, lengths: IntArray) -> IntArray:
        """Draw one token for each sequence; see the protocol."""
        batch = self._sampling.draft_batch(rows, lengths)
        self._last = None
        if not self._are_plain(rows):
            self._reject(logits, rows, lengths, batch)
        else:
            self._last = rows, batch
        return self._sampler.draw(logits, batch)

    def plain(self, rows: IntArray, lengths: IntArray) -> SamplingBatch | None:
        """Return the batch that a draw needs besides logits; see the protocol."""
        if self._last is not None and self._last[0] is rows:
            batch = self._last[1]
            batch.position[:] = lengths - batch.num_prompt_tokens
            return batch
        return self._sampling.draft_batch(rows, lengths) if self._are_plain(rows) else None

    def rank(
        self, logits: Array, rows: IntArray, lengths: IntArray, count: int
    ) -> tuple[IntArray, Chances]:
        """Rank the tokens that may be drawn; see :class:`~quire.speculative.proposer.Rank`."""
        tokens, chances = self._sampler.best(logits, count)
        sampled = np.flatnonzero(self._sampling.temperature(rows) > 0).astype(np.int32)
        if len(sampled):
            # The target draws the winner of a race: the winner without those before it comes next.
            batch = self._sampling.draft_batch(rows[sampled], lengths[sampled])
            tokens = tokens.copy()
            own = self._sampler.select(logits, sampled)
            for rank in range(tokens.shape[1]):
                drawn = self._sampler.draw(
                    self._sampler.select(own, np.arange(len(sampled), dtype=np.int32)), batch
                )
                tokens[sampled, rank] = drawn
                own[np.arange(len(sampled)), drawn] = -np.inf
        return tokens, chances

    def rejection(self, row: int) -> Rejection | None:
        """Return the rejection that verifies a row's proposals; None for the target's draws."""
        if row not in self.rejecting:
            return None
        drafts = self.drafts.get(row)
        return Rejection(self._sampling.seed(row), None if drafts is None else np.stack(drafts))

    def _are_plain(self, rows: IntArray) -> bool:
        """Return whether none of the rows has rules, or asks for acceptance by rejection."""
        has_rules, rejecting = self._sampling.has_rules, self.rejecting
        return not any(row in rejecting or has_rules(row) for row in rows.tolist())

    def _reject(
        self, logits: Array, rows: IntArray, lengths: IntArray, batch: SamplingBatch
    ) -> None:
        """Keep the probabilities of rows with acceptance by rejection, and draw these rows apart.

        Their proposals must not depend on the numbers by which the target draws.
        """
        rejecting = [i for i, row in enumerate(rows.tolist()) if row in self.rejecting]
        if rejecting:
            own = self._sampler.select(logits, np.array(rejecting, np.int32))
            drawn_from = self._sampling.draft_batch(rows[rejecting], lengths[rejecting])
            for i, q in zip(rejecting, self._sampler.probabilities(own, drawn_from), strict=True):
                self.drafts.setdefault(int(rows[i]), []).append(q)
                batch.seed[i] = stream_seed(int(batch.seed[i]), DRAFT)
