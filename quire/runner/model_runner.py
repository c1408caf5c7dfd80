"""Runs one plan on the model: copies blocks, computes, draws tokens, reads log-probabilities.

It decides nothing about which request runs; it never touches the block pool.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.core.sampling_params import SamplingParams
from quire.core.step import PromptLogprobs, SchedulerOutput, StepOutput, TokenLogprobs
from quire.kernels.backend import Array, Backend, KVCache
from quire.layers.sampler import Sampler
from quire.models.causal_model import CausalModel
from quire.runner.input_batch import InputBatch
from quire.runner.sampling_state import SamplingState
from quire.runner.token_table import IntArray

#: Rows of the vocabulary's width that exist at once beside the step's own logits.
LOGITS_CHUNK_ROWS = 32


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """Sizes the runner prepares for.

    Attributes:
        max_num_seqs: Requests running at once.
        max_model_len: Tokens of the longest request.
    """

    max_num_seqs: int
    max_model_len: int


@dataclass(slots=True)
class Draw:
    """One token to be drawn: for which request (of which row), from which row of logits."""

    request_id: str
    row: int
    logits_row: int
    num_logprobs: int | None


class ModelRunner:
    """Keeps the live requests' state and executes plans; see :class:`quire.engine.Executor`."""

    def __init__(
        self, model: CausalModel, backend: Backend, kv_cache: KVCache, limits: RunnerLimits
    ) -> None:
        self._model = model
        self._backend = backend
        self._kv_cache = kv_cache
        self._input = InputBatch(
            backend,
            num_rows=limits.max_num_seqs,
            max_model_len=limits.max_model_len,
            block_size=kv_cache.spec.block_size,
        )
        self._table = self._input.table
        self._sampling = SamplingState(self._table, model.config.eos_token_ids, backend)
        self._sampler = Sampler(backend)
        self._params: dict[str, SamplingParams] = {}
        self._prompt_logprobs_ids: set[str] = set()

    def execute(self, plan: SchedulerOutput) -> StepOutput:
        """Compute one step; see :meth:`quire.engine.Executor.execute`."""
        self._take_in(plan)
        if plan.block_copies:
            self._kv_cache.copy_blocks(plan.block_copies)
        output = StepOutput()
        if not plan.scheduled:
            return output
        batch = self._input.build(plan.scheduled)
        hidden = self._model.forward(batch, self._kv_cache)
        if self._prompt_logprobs_ids:
            self._read_prompt_logprobs(plan, hidden, output)
        draws = self._draws(plan)
        if draws:
            self._sample(draws, self._model.logits(hidden, batch.logits_indices), output)
        return output

    def _take_in(self, plan: SchedulerOutput) -> None:
        for request_id in plan.finished_request_ids:
            self._table.remove(request_id)
            self._params.pop(request_id, None)
            self._prompt_logprobs_ids.discard(request_id)
        for request in plan.new_requests:
            row = self._input.add(request)
            self._sampling.set(row, request.params, request.seed)
            self._params[request.request_id] = request.params
            if request.params.prompt_logprobs is not None:
                self._prompt_logprobs_ids.add(request.request_id)
        self._input.update_blocks(plan)

    def _draws(self, plan: SchedulerOutput) -> list[Draw]:
        """List the step's draws, forked children behind the requests they come from."""
        draws: list[Draw] = []
        logits_rows: dict[str, int] = {}
        for request in plan.scheduled:
            if request.samples:
                request_id = request.request_id
                at = logits_rows[request_id] = len(logits_rows)
                row = self._table.rows[request_id]
                draws.append(Draw(request_id, row, at, self._params[request_id].logprobs))
        for fork in plan.forks:
            row = self._table.fork(fork.parent_id, fork.child_id)
            self._sampling.set(row, fork.params, fork.seed)
            self._params[fork.child_id] = fork.params
            at = logits_rows[fork.parent_id]
            draws.append(Draw(fork.child_id, row, at, fork.params.logprobs))
        return draws

    def _sample(self, draws: list[Draw], logits: Array, output: StepOutput) -> None:
        # Drawing overwrites the logits; rows that are needed again are copied, some at a time.
        in_place = len(draws) == len(logits) and all(d.num_logprobs is None for d in draws)
        size = len(draws) if in_place else LOGITS_CHUNK_ROWS
        for start in range(0, len(draws), size):
            chunk = draws[start : start + size]
            rows = np.array([draw.row for draw in chunk], np.int32)
            at = np.array([draw.logits_row for draw in chunk], np.int32)
            own = logits if in_place else self._sampler.select(logits, at)
            tokens = self._sampler.draw(own, self._sampling.batch(rows))
            self._table.append_tokens(rows, tokens)
            for draw, token in zip(chunk, tokens.tolist(), strict=True):
                if token < 0:
                    output.errors[draw.request_id] = self._sampling.refusal(draw.row)
                else:
                    output.sampled[draw.request_id] = [token]
            asked = [
                i for i, d in enumerate(chunk) if d.num_logprobs is not None and tokens[i] >= 0
            ]
            if asked:
                raw = self._sampler.select(logits, at[asked])
                num_top = [chunk[i].num_logprobs or 0 for i in asked]
                entries = self._sampler.logprobs(raw, tokens[asked], num_top)
                for i, entry in zip(asked, entries, strict=True):
                    output.logprobs[chunk[i].request_id] = [entry]

    def _read_prompt_logprobs(
        self, plan: SchedulerOutput, hidden: Array, output: StepOutput
    ) -> None:
        first_row = 0
        for request in plan.scheduled:
            row = self._table.rows[request.request_id]
            start = request.num_computed_tokens
            # The last prompt token predicts an output, not a prompt token.
            end = min(
                start + request.num_scheduled_tokens, int(self._table.num_prompt_tokens[row]) - 1
            )
            num_top = self._params[request.request_id].prompt_logprobs
            if num_top is not None and start < end:
                targets = self._table.token_ids[row, start + 1 : end + 1]
                rows = np.arange(first_row, first_row + end - start, dtype=np.int32)
                output.prompt_logprobs[request.request_id] = PromptLogprobs(
                    start + 1, self._logprobs_of(hidden, rows, targets, num_top)
                )
            first_row += request.num_scheduled_tokens

    def _logprobs_of(
        self, hidden: Array, rows: IntArray, targets: IntArray, num_top: int
    ) -> list[TokenLogprobs]:
        entries: list[TokenLogprobs] = []
        for start in range(0, len(rows), LOGITS_CHUNK_ROWS):
            part = slice(start, start + LOGITS_CHUNK_ROWS)
            logits = self._model.logits(hidden, self._backend.from_numpy(rows[part]))
            wanted = np.ascontiguousarray(targets[part])
            entries += self._sampler.logprobs(logits, wanted, [num_top] * len(wanted))
        return entries


def logits_scratch_bytes(max_num_seqs: int, vocab_size: int) -> int:
    """Bytes of logits alive at once: the step's own, and two chunks of copies."""
    return 4 * vocab_size * (max_num_seqs + 2 * LOGITS_CHUNK_ROWS)
