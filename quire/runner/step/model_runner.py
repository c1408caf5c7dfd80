"""Execution of plans on the model: copies, computes, draws tokens, reads log-probabilities.

It does not decide which request runs, and never touches the block pool.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from quire.core.errors import FailureKind, RequestFailure
from quire.core.metrics import Samples
from quire.core.sampling_params import SamplingParams
from quire.core.speculative_config import SpeculativeMethod
from quire.core.step import (
    NewRequest,
    PromptLogprobs,
    SchedulerOutput,
    SequenceResult,
    StepInterrupted,
    StepOutput,
    TokenLogprobs,
)
from quire.core.structured_outputs import GrammarSource
from quire.kernels.backend import Backend, KVCache
from quire.kernels.batch.ragged_batch import rows_without_memory
from quire.kernels.batch.token_table import IntArray
from quire.kernels.batch.tree_batch import num_masked_pairs
from quire.layers.sampler import Sampler
from quire.models.decoder import HiddenStates
from quire.models.model import Model
from quire.runner.blocks.block_store import move_blocks, save_blocks
from quire.runner.blocks.kv_canary import KVCanary
from quire.runner.blocks.tiers.block_tiers import BlockTiers
from quire.runner.blocks.transfer.outbox import Outbox
from quire.runner.memory.adapter_store import AdapterStore
from quire.runner.step.hidden_state_capture import ComputedRows
from quire.runner.step.input_batch import InputBatch
from quire.runner.step.picture_encoding import PictureRows
from quire.runner.step.pooling import PoolingState
from quire.runner.step.sampling_state import SamplingState
from quire.runner.step.speculation import CreateProposers, EngineProposers
from quire.runner.step.step_retry import Ending, StepRetry
from quire.runner.step.token_sampling import LOGITS_CHUNK_ROWS, TokenDraw, TokenSampling

#: Numbers of rows whose steps are measured at start; repetitions, at least and at most; and seconds
#: after which no more than the least are made. Quick models need more for a steady minimum.
MEASURED_ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 13, 16, 24, 32)
MEASURED_TIMES, MOST_MEASURED_TIMES, MEASURED_SECONDS = 3, 30, 0.2


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """Limits that the runner prepares for.

    Attributes:
        max_num_seqs: Requests running at once.
        max_model_len: Tokens of the longest request.
        eos_token_ids: Ids that ``min_tokens`` forbids.
    """

    max_num_seqs: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Prompt positions of one request whose states are read in this step.

    Attributes:
        request_id: Id of the request.
        index: Index into the plan's ``scheduled``.
        first: Index of the first row among the request's rows in this step.
        start: Position of the first row in the prompt.
        count: Number of positions, at least 1.
    """

    request_id: str
    index: int
    first: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of a step that the model computes.

    Attributes:
        plan: The plan of these rows.
        output: The step's output so far.
        prompt_parts: Prompt positions whose states are read.
        num_proposed: (B,), number of tokens proposed for each request; None for none at all.
        hidden: Hidden states that the model computes.
        num_rows: Number of rows, T.
        num_samples: Number of leading rows of ``hidden`` that tokens are drawn from.
        begin: Time at which the model began.
    """

    plan: SchedulerOutput
    output: StepOutput
    prompt_parts: Sequence[PromptPart]
    num_proposed: IntArray | None
    hidden: HiddenStates
    num_rows: int
    num_samples: int
    begin: float


class ModelRunner:
    """State of live requests, and execution of plans; see :class:`quire.engine.Executor`."""

    def __init__(
        self,
        model: Model,
        backend: Backend,
        kv_cache: KVCache,
        options: RunnerOptions,
        grammars: GrammarSource | None = None,
        canary: KVCanary | None = None,
        tiers: BlockTiers | Outbox | None = None,
        pictures: PictureRows | None = None,
    ) -> None:
        self._model = model
        self._backend = backend
        self._kv_cache = kv_cache
        self.canary = canary
        self.tiers = tiers
        self.adapters: AdapterStore | None = None
        self._input = InputBatch(
            backend,
            num_rows=options.max_num_seqs,
            max_model_len=options.max_model_len,
            block_size=kv_cache.spec.block_size,
        )
        self._table = self._input.table
        self._sampling = SamplingState(self._table, options.eos_token_ids, backend, grammars)
        self._sampler = Sampler(backend)
        self._token_sampling = TokenSampling(self._table, self._sampling, self._sampler)
        self._speculation: EngineProposers | None = None
        self._params: dict[str, SamplingParams] = {}
        self._prompt_logprobs_ids: set[str] = set()
        self._pooling = PoolingState(model)
        self.pictures = pictures or PictureRows(None, backend, 0)
        self._parts = StepRetry(self._table, kv_cache.spec.block_size, self._begin_rows)
        self._request_arrived: Callable[[], bool] = lambda: False
        self._broken: dict[str, BaseException] = {}  # reasons, of requests that could not be added

    def take_adapters(self, adapters: AdapterStore) -> None:
        """Accept requests with adapters in memory from now on."""
        self.adapters = adapters

    def speculate(
        self, methods: Sequence[SpeculativeMethod], create_proposers: CreateProposers
    ) -> None:
        """Propose tokens from now on, for new requests."""
        proposers = create_proposers(self._table)
        self._speculation = EngineProposers(
            self._table, self._sampling, self._sampler, methods, proposers, self._model
        )

    def end_speculation(self) -> None:
        """Propose no tokens from now on; no request is live."""
        self._speculation = None

    def speculation_samples(self) -> Samples:
        """Return the number of each proposer's failures, by metric stem."""
        return {} if self._speculation is None else self._speculation.samples()

    def execute(
        self, plan: SchedulerOutput, request_arrived: Callable[[], bool] = lambda: False
    ) -> StepOutput:
        """Compute one step; see :meth:`quire.engine.Executor.submit`."""
        return self.begin(plan, request_arrived)()

    def begin(
        self, plan: SchedulerOutput, request_arrived: Callable[[], bool] = lambda: False
    ) -> Ending:
        """Begin one step: the model computes the part on this rank.

        Returns:
            A call that waits for the rest, draws tokens and returns the step's output. Before that,
            steps of other requests or of later parts of prompts may begin. Calls are made in the
            order of steps.
        """
        # A canary seals the blocks that a plan fills: none of its rows may be dropped.
        self._request_arrived = request_arrived if self.canary is None else lambda: False
        self._update_requests(plan)
        lost_blocks: list[int] = []
        if self.tiers is not None and (plan.block_stores or plan.block_loads):
            lost_blocks = move_blocks(plan, self._kv_cache, self.tiers)
        if plan.block_copies:
            self._kv_cache.copy_blocks(plan.block_copies)
            if self._speculation is not None:
                self._speculation.copy_blocks(plan.block_copies)
        corrupted: Mapping[str, RequestFailure] = {}
        rows = None
        if plan.scheduled:
            corrupted = {} if self.canary is None else self.canary.verify(plan)
            rows = self._parts.begin(plan, self._broken_of(plan), lost_blocks)
        return partial(self._end, plan, rows, lost_blocks, corrupted)

    def _end(
        self,
        plan: SchedulerOutput,
        rows: Ending | None,
        lost_blocks: list[int],
        corrupted: Mapping[str, RequestFailure],
    ) -> StepOutput:
        output = StepOutput(lost_block_ids=lost_blocks) if rows is None else rows()
        if self.canary is not None and rows is not None:
            self.canary.seal(plan)
            for request_id, failure in corrupted.items():
                output.result(request_id).error = failure
        if self.tiers is not None and plan.block_saves:
            save_blocks(plan.block_saves, output, self._kv_cache, self.tiers)
        return output

    def _begin_rows(self, plan: SchedulerOutput) -> Ending:
        """Begin the requests of a plan; when they fail, their state is restored."""
        try:
            return partial(self._end_rows, self._forward(plan))
        except BaseException as error:
            failed, totals = error, self._pooling.totals()

        def fail() -> StepOutput:
            if not isinstance(failed, StepInterrupted):  # before anything was proposed
                self._undo(plan, totals)
            raise failed

        return fail

    def _end_rows(self, step: StepRows) -> StepOutput:
        totals = self._pooling.totals()
        try:
            return self._read(step)
        except BaseException:
            self._undo(step.plan, totals)
            raise

    def _undo(self, plan: SchedulerOutput, totals: dict[str, Any]) -> None:
        self._pooling.restore(totals)
        for fork in plan.forks:
            self._forget(fork.child_id)
        for request in plan.scheduled:
            if request.samples:
                row = self._table.rows[request.request_id]
                num_known = request.num_computed_tokens + request.num_scheduled_tokens
                self._table.num_tokens[row] = num_known
                self._sampling.restart(row)

    def _forward(self, plan: SchedulerOutput) -> StepRows:
        """Propose tokens, and compute the rows of a plan by the model."""
        output = StepOutput()
        prompt_parts = self._prompt_parts(plan) if self._prompt_logprobs_ids else []
        if self._pooling:
            prompt_parts += self._pooled_parts(plan)
        wanted = [(part.index, part.first, part.count) for part in prompt_parts]
        num_proposed = capture = parents = None
        if (speculation := self._speculation_of(plan)) is not None:
            start = time.perf_counter()
            num_proposed = speculation.propose(plan)
            output.propose_seconds = time.perf_counter() - start
            output.draft_work = speculation.take_work()
            wanted += speculation.wanted_rows(plan)
            capture, parents = speculation.capture, speculation.trees(plan)
            output.num_masked_pairs = sum(map(num_masked_pairs, parents.values()))
        begin = time.perf_counter()
        given = self.pictures.given(plan.scheduled)
        batch = self._input.build(plan.scheduled, wanted, num_proposed, parents, given)
        hidden = self._model.forward(batch, self._kv_cache, self._between_layers(plan), capture)
        num_rows = int(batch.input_ids.shape[0])
        return StepRows(
            plan, output, prompt_parts, num_proposed, hidden, num_rows, batch.num_drawn, begin
        )

    def _read(self, step: StepRows) -> StepOutput:
        """Draw tokens from the model's states, and read other results that are wanted."""
        plan, output, hidden = step.plan, step.output, step.hidden
        num_samples, num_proposed = step.num_samples, step.num_proposed
        paths: Mapping[int, Sequence[int]] = {}
        at = num_samples
        for part in step.prompt_parts:
            rows = hidden[at : at + part.count]
            self._read_part(part, plan, rows, output.result(part.request_id))
            at += part.count
        if (speculation := self._speculation_of(plan)) is not None:
            speculation.draw()
        if num_samples:
            logits = self._model.logits(hidden[:num_samples])
            start = time.perf_counter()
            draws = self._draws(plan, num_proposed)
            paths = self._token_sampling.run(draws, logits, output, len(plan.scheduled))
            self._keep_paths(paths)
            output.sample_seconds = time.perf_counter() - start
        if speculation is not None and speculation.reads_states:
            decodes = None
            if num_proposed is None and step.num_rows == len(hidden) == len(plan.scheduled):
                own = np.array([self._table.rows[r.request_id] for r in plan.scheduled], np.int32)
                places = np.array([r.num_computed_tokens for r in plan.scheduled], np.int32)
                decodes = ComputedRows(own, places)
            speculation.observe(plan, num_proposed, output, hidden, paths, decodes)
        if speculation is not None:
            speculation.step_took(time.perf_counter() - step.begin)
        return output

    def _speculation_of(self, plan: SchedulerOutput) -> EngineProposers | None:
        """Return the proposers that take part in a step; None for a step without proposals."""
        return self._speculation if plan.keeps_states else None

    def _keep_paths(self, paths: Mapping[int, Sequence[int]]) -> None:
        """Move the KV of a tree's accepted tokens to the slots of a plain sequence."""
        table, size = self._table, self._kv_cache.spec.block_size
        pairs: list[tuple[int, int]] = []
        for row, path in paths.items():
            start = int(table.num_tokens[row]) - 1 - len(path)
            for i, node in enumerate(path):
                if i != node:
                    source, target = divmod(start + node, size), divmod(start + i, size)
                    blocks = table.block_ids[row]
                    from_slot = int(blocks[source[0]]) * size + source[1]
                    pairs.append((from_slot, int(blocks[target[0]]) * size + target[1]))
        if pairs:
            self._kv_cache.copy_slots(pairs)

    def _between_layers(self, plan: SchedulerOutput) -> Callable[[], None] | None:
        """Return a check that ends the step once a request has arrived, if the plan allows that."""
        if not plan.abortable_ids:
            return None

        def look() -> None:
            if self._request_arrived():
                raise StepInterrupted

        return look

    def measure_rows(self) -> dict[int, float]:
        """Return the seconds of a step by the number of its rows, each a sequence of one token."""
        upload = self._backend.upload
        batches = {count: upload(rows_without_memory(count)) for count in MEASURED_ROWS}
        seconds = dict.fromkeys(MEASURED_ROWS, math.inf)
        begin = time.perf_counter()
        for number in range(MOST_MEASURED_TIMES):
            if number >= MEASURED_TIMES and time.perf_counter() - begin > MEASURED_SECONDS:
                break
            for count, batch in batches.items():  # in turn: a disturbance meets all of them alike
                start = time.perf_counter()
                self._model.logits(self._model.forward(batch, self._kv_cache))
                seconds[count] = min(seconds[count], time.perf_counter() - start)
        return seconds

    def unready(self) -> frozenset[str]:
        """Return the requests whose next token cannot be drawn yet; see the protocol."""
        rows = self._sampling.grammars.unready_rows()
        if not rows:
            return frozenset()
        return frozenset(name for name, row in self._table.rows.items() if row in rows)

    def wait_until_ready(self, seconds: float) -> None:
        """Wait until one of :meth:`unready` is ready, at most ``seconds``."""
        self._sampling.grammars.wait_until_ready(seconds)

    def close(self) -> None:
        """End background threads; no call follows."""
        self._sampling.grammars.close()
        if self.adapters is not None:
            self.adapters.close()
        if self.tiers is not None:
            self.tiers.close()

    def _forget(self, request_id: str) -> None:
        if self._speculation is not None and request_id in self._table.rows:
            self._speculation.forget(self._table.rows[request_id])
        self._table.remove(request_id)
        self._params.pop(request_id, None)
        self._broken.pop(request_id, None)
        self._prompt_logprobs_ids.discard(request_id)
        self._pooling.remove(request_id)
        self.pictures.remove(request_id)

    def _update_requests(self, plan: SchedulerOutput) -> None:
        """Apply a plan's changes; new requests that cannot be added are broken."""
        for request_id in plan.finished_request_ids:
            self._forget(request_id)
        for request in plan.new_requests:
            self._params[request.request_id] = request.params
            try:
                row = self._input.add(request, self._adapter_slot(request))
                self.pictures.set(request.request_id, request.source.pictures)
                self._sampling.set(row, request.params, request.seed)
                if self._speculation is not None:
                    self._speculation.begin(row, request.params, request.source.all_keys)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # Rust libraries raise panics as such
                self._broken[request.request_id] = error
                continue
            if request.params.prompt_logprobs is not None:
                self._prompt_logprobs_ids.add(request.request_id)
            if request.params.pooling is not None:
                pooling, length = request.params.pooling, request.num_prompt_tokens
                self._pooling.set(request.request_id, pooling, length)
        self._input.update_blocks(plan, self._broken)

    def _broken_of(self, plan: SchedulerOutput) -> dict[str, BaseException]:
        if not self._broken:
            return {}
        names = [request.request_id for request in plan.scheduled]
        return {name: self._broken[name] for name in names if name in self._broken}

    def _adapter_slot(self, request: NewRequest) -> int:
        adapter = request.source.adapter
        if adapter is None:
            return 0
        assert self.adapters is not None, "a request with an adapter and no store of them"
        return self.adapters.slot(adapter.content_hash)

    def _draws(self, plan: SchedulerOutput, num_proposed: IntArray | None) -> list[TokenDraw]:
        """List the step's draws, forked children after their parents."""
        draws: list[TokenDraw] = []
        last_rows: dict[str, int] = {}
        first = 0
        for i, request in enumerate(plan.scheduled):
            if request.samples:
                request_id = request.request_id
                count = 0 if num_proposed is None else int(num_proposed[i])
                row, params = self._table.rows[request_id], self._params[request_id]
                rejection = parents = None
                if count and self._speculation is not None:
                    rejection = self._speculation.rejection(row)
                    parents = self._speculation.parents.get(row)
                draws.append(TokenDraw(request_id, row, first, params, count, parents, rejection))
                first += count + 1
                last_rows[request_id] = first - 1
        for fork in plan.forks:
            row = self._input.fork(fork.parent_id, fork.child_id)
            parent = self._table.rows[fork.parent_id]
            self._sampling.set(row, fork.params, fork.seed, parent)
            self._params[fork.child_id] = fork.params
            if self._speculation is not None:
                self._speculation.fork(parent, row, fork.params)
            draws.append(TokenDraw(fork.child_id, row, last_rows[fork.parent_id], fork.params))
        return draws

    def _prompt_parts(self, plan: SchedulerOutput) -> list[PromptPart]:
        parts: list[PromptPart] = []
        for index, request in enumerate(plan.scheduled):
            if request.request_id in self._prompt_logprobs_ids:
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

    def _read_part(
        self, part: PromptPart, plan: SchedulerOutput, rows: HiddenStates, result: SequenceResult
    ) -> None:
        """Read the results that a request asks for from its prompt's states."""
        if part.request_id not in self._pooling:
            result.prompt_logprobs = self._prompt_logprobs(part, rows)
            return
        try:
            result.embedding = self._pooling.add(plan.scheduled[part.index], rows.states)
        except FloatingPointError as error:
            result.error = RequestFailure(FailureKind.ENGINE, str(error))

    def _prompt_logprobs(self, part: PromptPart, hidden: HiddenStates) -> PromptLogprobs:
        tokens = self._table.tokens(self._table.rows[part.request_id])
        targets = tokens[part.start + 1 : part.start + 1 + part.count]
        num_top = self._params[part.request_id].prompt_logprobs or 0
        entries: list[TokenLogprobs] = []
        for start in range(0, part.count, LOGITS_CHUNK_ROWS):
            chunk = slice(start, start + LOGITS_CHUNK_ROWS)
            wanted = np.ascontiguousarray(targets[chunk])
            logits = self._model.logits(hidden[chunk])
            entries += self._sampler.logprobs(logits, wanted, [num_top] * len(wanted))
        return PromptLogprobs(part.start + 1, entries)
