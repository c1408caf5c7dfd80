"""Tokens and their log-probabilities from logits, as plain data; it knows no requests.

L rows of logits, B draws, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quire.core.step import TokenLogprobs
from quire.kernels.backend import Array, Backend
from quire.kernels.batch.sampling_batch import SamplingBatch

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]


class Sampler:
    """Draws tokens and reads log-probabilities on one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def draw(self, logits: Array, batch: SamplingBatch) -> IntArray:
        """Choose a token for each row of ``logits`` (B, V), which is overwritten.

        Returns:
            (B,) int32; -1 where no token is possible (NaN, or everything forbidden).
        """
        tokens: IntArray = self._backend.to_numpy(self._backend.sample(logits, batch))
        return tokens

    def probabilities(self, logits: Array, batch: SamplingBatch) -> FloatArray:
        """Return the probabilities of :meth:`draw`, (B, V) float32; ``logits`` are overwritten.

        A row is 0 everywhere where no token is possible.
        """
        found: FloatArray = self._backend.to_numpy(
            self._backend.sampling_probabilities(logits, batch)
        )
        return found

    def select(self, logits: Array, rows: IntArray) -> Array:
        """Copy ``rows`` (B,) of ``logits`` (L, V) to a new (B, V)."""
        out = self._backend.empty((len(rows), logits.shape[1]))
        return self._backend.gather_rows(logits, self._backend.from_numpy(rows), out)

    def best(self, logits: Array, count: int) -> tuple[IntArray, FloatArray]:
        """Return the likeliest tokens of each row of raw ``logits`` (B, V), best first.

        Returns:
            Ids and probabilities at temperature 1, (B, C) with C = min(count, V).
        """
        count = min(count, logits.shape[1])
        any_ids = self._backend.from_numpy(np.zeros(len(logits), np.int32))
        _, _, ids, logprobs = self._backend.token_logprobs(logits, any_ids, count)
        return self._backend.to_numpy(ids), np.exp(self._backend.to_numpy(logprobs))

    def logprobs(
        self, logits: Array, token_ids: IntArray, num_top: Sequence[int]
    ) -> list[TokenLogprobs]:
        """Describe ``token_ids`` (B,) under raw ``logits`` (B, V).

        Args:
            logits: (B, V), left as they are.
            token_ids: (B,) int32.
            num_top: Number of the best tokens to list, by row; -1 lists all V.
        """
        vocab_size = logits.shape[1]
        wanted = [vocab_size if k < 0 else min(k, vocab_size) for k in num_top]
        device = self._backend.from_numpy
        figures = self._backend.token_logprobs(logits, device(token_ids), max(wanted))
        logprob, rank, top_ids, top_logprobs = (self._backend.to_numpy(f) for f in figures)
        return [
            TokenLogprobs(
                token_id=int(token_ids[i]),
                logprob=float(logprob[i]),
                rank=int(rank[i]),
                top=list(zip(top_ids[i, :k].tolist(), top_logprobs[i, :k].tolist(), strict=True)),
            )
            for i, k in enumerate(wanted)
        ]
