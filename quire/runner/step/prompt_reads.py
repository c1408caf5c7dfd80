"""Results that requests ask for from the states of their prompts: log-probabilities and vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire.core.errors import FailureKind, RequestFailure
from quire.core.step import (
    NewRequest,
    PromptLogprobs,
    SchedulerOutput,
    SequenceResult,
    TokenLogprobs,
)
from quire.kernels.batch.token_table import TokenTable
from quire.layers.sampler import Sampler
from quire.models.decoder import HiddenStates
from quire.models.model import Model
from quire.runner.step.computed_step import PromptPart
from quire.runner.step.pooling import PoolingState
from quire.runner.step.token_sampling import LOGITS_CHUNK_ROWS


class PromptReads:
    """The live requests whose prompts' states are read; most requests have none.

    Args:
        model: The model that computes the states.
        sampler: Sampler that reads log-probabilities.
        table: The table of the requests' tokens.
    """

    def __init__(self, model: Model, sampler: Sampler, table: TokenTable) -> None:
        self._model = model
        self._sampler = sampler
        self._table = table
        self._num_top: dict[str, int] = {}  # alternatives, by request with log-probabilities
        self._pooling = PoolingState(model)

    def set(self, request: NewRequest) -> None:
        """Begin a request; a preempted one begins again."""
        params = request.params
        if params.prompt_logprobs is not None:
            self._num_top[request.request_id] = params.prompt_logprobs
        if params.pooling is not None:
            self._pooling.set(request.request_id, params.pooling, request.num_prompt_tokens)

    def remove(self, request_id: str) -> None:
        """Forget a request; unknown ids are no error."""
        self._num_top.pop(request_id, None)
        self._pooling.remove(request_id)

    def totals(self) -> dict[str, Any]:
        """Return the vectors so far; see :meth:`~quire.runner.step.pooling.PoolingState.totals`."""
        return self._pooling.totals()

    def restore(self, totals: dict[str, Any]) -> None:
        """Restore vectors that :meth:`totals` returned."""
        self._pooling.restore(totals)

    def parts(self, plan: SchedulerOutput) -> list[PromptPart]:
        """Return the positions whose states are read in a step."""
        parts = self._logprob_parts(plan) if self._num_top else []
        return parts + self._pooled_parts(plan) if self._pooling else parts

    def read(
        self, part: PromptPart, plan: SchedulerOutput, rows: HiddenStates, result: SequenceResult
    ) -> None:
        """Read the results that a request asks for.

        Args:
            part: Positions of the request.
            plan: The step's plan.
            rows: States of these positions.
            result: The request's result, which is filled in.
        """
        if part.request_id not in self._pooling:
            result.prompt_logprobs = self._logprobs(part, rows)
            return
        try:
            result.embedding = self._pooling.add(plan.scheduled[part.index], rows.states)
        except FloatingPointError as error:
            result.error = RequestFailure(FailureKind.ENGINE, str(error))

    def _logprob_parts(self, plan: SchedulerOutput) -> list[PromptPart]:
        parts: list[PromptPart] = []
        for index, request in enumerate(plan.scheduled):
            if request.request_id in self._num_top:
                row = self._table.rows[request.request_id]
                start = request.num_computed_tokens
                # The last prompt token predicts an output, not a prompt token.
                last = int(self._table.num_prompt_tokens[row]) - 1
                count = min(start + request.num_scheduled_tokens, last) - start
                if count > 0:
                    parts.append(PromptPart(request.request_id, index, 0, start, count))
        return parts

    def _pooled_parts(self, plan: SchedulerOutput) -> list[PromptPart]:
        parts: list[PromptPart] = []
        for index, row in enumerate(plan.scheduled):
            if row.request_id in self._pooling:
                first, count = self._pooling.wanted(row)
                if count:
                    start = row.num_computed_tokens + first
                    parts.append(PromptPart(row.request_id, index, first, start, count))
        return parts

    def _logprobs(self, part: PromptPart, hidden: HiddenStates) -> PromptLogprobs:
        tokens = self._table.tokens(self._table.rows[part.request_id])
        targets = tokens[part.start + 1 : part.start + 1 + part.count]
        num_top = self._num_top[part.request_id]
        entries: list[TokenLogprobs] = []
        for start in range(0, part.count, LOGITS_CHUNK_ROWS):
            chunk = slice(start, start + LOGITS_CHUNK_ROWS)
            wanted = np.ascontiguousarray(targets[chunk])
            logits = self._model.logits(hidden[chunk])
            entries += self._sampler.logprobs(logits, wanted, [num_top] * len(wanted))
        return PromptLogprobs(part.start + 1, entries)
