"""Execution of plans on the model: copies, computes, draws tokens, reads log-probabilities.

It does not decide which request runs, and never touches the block pool.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from quire.core.errors import RequestFailure
from quire.core.metrics import Samples
from quire.core.speculative_config import SpeculativeMethod
from quire.core.step import SchedulerOutput, StepInterrupted, StepOutput
from quire.core.structured_outputs import GrammarSource
from quire.kernels.backend import KVCache
from quire.layers.sampler import Sampler
from quire.models.model import Model
from quire.runner.blocks.block_store import BlockStore, move_blocks, save_blocks
from quire.runner.blocks.kv_canary import KVCanary, NoCanary
from quire.runner.memory.adapter_store import AdapterStore, NoAdapters
from quire.runner.step.computed_step import ComputedStep
from quire.runner.step.drafts.engine_proposers import CreateProposers, EngineProposers
from quire.runner.step.drafts.tree_slots import keep_accepted_slots
from quire.runner.step.input_batch import InputBatch
from quire.runner.step.live_requests import LiveRequests
from quire.runner.step.picture_encoding import NoPictures, PictureRows
from quire.runner.step.prompt_reads import PromptReads
from quire.runner.step.sampling_state import SamplingState
from quire.runner.step.speculation import NO_SPECULATION, Speculation
from quire.runner.step.step_retry import StepEnd, StepRetry
from quire.runner.step.token_sampling import TokenSampling


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
class RunnerParts:
    """The parts of a runner that only some engines have; others have ones that do nothing.

    Attributes:
        grammars: Source of grammars of structured outputs; None where requests have none.
        canary: Checks of the KV cache's blocks.
        store: Store of blocks outside of the cache.
        pictures: Pictures of the requests.
        adapters: Adapters of the requests.
    """

    grammars: GrammarSource | None
    canary: KVCanary | NoCanary
    store: BlockStore
    pictures: PictureRows | NoPictures
    adapters: AdapterStore | NoAdapters


class ModelRunner:
    """State of live requests, and execution of plans; see :class:`quire.engine.Executor`.

    Args:
        model: The model, or the part of it on this rank.
        kv_cache: The KV cache of all its layers.
        options: Limits to prepare for.
        parts: Parts that only some engines have.
    """

    def __init__(
        self, model: Model, kv_cache: KVCache, options: RunnerOptions, parts: RunnerParts
    ) -> None:
        self.model = model
        self.kv_cache = kv_cache
        self._parts = parts
        self._input = InputBatch(
            model.backend,
            num_rows=options.max_num_seqs,
            max_model_len=options.max_model_len,
            block_size=kv_cache.spec.block_size,
        )
        table = self._table = self._input.table
        eos_token_ids, grammars = options.eos_token_ids, parts.grammars
        self._sampling = SamplingState(table, eos_token_ids, model.backend, grammars)
        self._sampler = Sampler(model.backend)
        self._token_sampling = TokenSampling(table, self._sampling, self._sampler)
        self._prompt_reads = PromptReads(model, self._sampler, table)
        self._requests = LiveRequests(
            self._input, self._sampling, self._prompt_reads, parts.pictures, parts.adapters
        )
        self._retry = StepRetry(table, kv_cache.spec.block_size, self._begin_rows)
        self._request_arrived: Callable[[], bool] = lambda: False

    def speculate(
        self, methods: Sequence[SpeculativeMethod], create_proposers: CreateProposers
    ) -> None:
        """Propose tokens from now on, for new requests."""
        proposers = create_proposers(self._table)
        self._requests.speculation = EngineProposers(
            self._table, self._sampling, self._sampler, methods, proposers, self.model
        )

    def end_speculation(self) -> None:
        """Propose no tokens from now on; no request is live."""
        self._requests.speculation = NO_SPECULATION

    def samples(self) -> Samples:
        """Return the counters of the runner's parts, by metric stem."""
        parts = self._parts
        values = self._requests.speculation.samples() | parts.pictures.samples()
        return values | parts.canary.samples() | parts.adapters.samples()

    def begin(self, plan: SchedulerOutput, request_arrived: Callable[[], bool]) -> StepEnd:
        """Begin one step: the model computes the part on this rank.

        Args:
            plan: The step's plan.
            request_arrived: The same as in :meth:`quire.engine.Executor.submit`.

        Returns:
            A call that waits for the rest, draws tokens and returns the step's output. Before that,
            steps of other requests or of later parts of prompts may begin. Calls are made in the
            order of steps.
        """
        canary = self._parts.canary
        self._request_arrived = request_arrived if canary.allows_drops else lambda: False
        self._requests.update(plan)
        lost_blocks: list[int] = []
        if plan.block_stores or plan.block_loads:
            lost_blocks = move_blocks(plan, self.kv_cache, self._parts.store)
        if plan.block_copies:
            self.kv_cache.copy_blocks(plan.block_copies)
            self._requests.speculation.copy_blocks(plan.block_copies)
        corrupted: Mapping[str, RequestFailure] = {}
        rows = None
        if plan.scheduled:
            corrupted = canary.verify(plan)
            rows = self._retry.begin(plan, self._requests.broken(plan), lost_blocks)
        return partial(self._end, plan, rows, lost_blocks, corrupted)

    def _end(
        self,
        plan: SchedulerOutput,
        rows: StepEnd | None,
        lost_blocks: list[int],
        corrupted: Mapping[str, RequestFailure],
    ) -> StepOutput:
        output = StepOutput(lost_block_ids=lost_blocks) if rows is None else rows()
        if rows is not None:
            self._parts.canary.seal(plan)
            for request_id, error in corrupted.items():
                output.result(request_id).error = error
        if plan.block_saves:
            save_blocks(plan.block_saves, output, self.kv_cache, self._parts.store)
        return output

    def _begin_rows(self, plan: SchedulerOutput) -> StepEnd:
        """Begin the requests of a plan; when they fail, their state is restored."""
        try:
            return partial(self._end_rows, self._forward(plan))
        except BaseException as error:
            failed, totals = error, self._prompt_reads.totals()

        def fail() -> StepOutput:
            if not isinstance(failed, StepInterrupted):  # before anything was proposed
                self._requests.undo(plan, totals)
            raise failed

        return fail

    def _end_rows(self, step: ComputedStep) -> StepOutput:
        totals = self._prompt_reads.totals()
        try:
            return self._read(step)
        except BaseException:
            self._requests.undo(step.plan, totals)
            raise

    def _forward(self, plan: SchedulerOutput) -> ComputedStep:
        """Propose tokens, and compute the rows of a plan by the model."""
        output = StepOutput()
        prompt_parts = self._prompt_reads.parts(plan)
        proposals = self._speculation(plan).propose(plan, output)
        wanted = [(part.index, part.first, part.count) for part in prompt_parts]
        wanted += proposals.wanted_rows
        begin = time.perf_counter()
        given = self._parts.pictures.given(plan.scheduled)
        batch = self._input.build(
            plan.scheduled, wanted, proposals.counts, proposals.parents, given
        )
        between_layers, capture = self._between_layers(plan), proposals.capture
        hidden = self.model.forward(batch, self.kv_cache, between_layers, capture)
        num_rows, num_drawn = int(batch.input_ids.shape[0]), batch.num_drawn
        return ComputedStep(
            plan, output, prompt_parts, proposals, hidden, num_rows, num_drawn, begin
        )

    def _read(self, step: ComputedStep) -> StepOutput:
        """Draw tokens from the model's states, and read other results that are wanted."""
        plan, output, hidden = step.plan, step.output, step.hidden
        num_samples, speculation = step.num_samples, self._speculation(plan)
        paths: Mapping[int, Sequence[int]] = {}
        at = num_samples
        for part in step.prompt_parts:
            rows = hidden[at : at + part.count]
            self._prompt_reads.read(part, plan, rows, output.result(part.request_id))
            at += part.count
        speculation.begin_draws()
        if num_samples:
            logits = self.model.logits(hidden[:num_samples])
            start = time.perf_counter()
            draws = self._requests.draws(plan, step.proposals)
            paths = self._token_sampling.run(draws, logits, output, len(plan.scheduled))
            keep_accepted_slots(paths, self._table, self.kv_cache)
            output.sample_seconds = time.perf_counter() - start
        speculation.observe(step, paths)
        return output

    def _speculation(self, plan: SchedulerOutput) -> Speculation:
        """Return the speculation of a step; that of the engine where it keeps states."""
        return self._requests.speculation if plan.keeps_states else NO_SPECULATION

    def _between_layers(self, plan: SchedulerOutput) -> Callable[[], None] | None:
        """Return a check that ends the step once a request has arrived, if the plan allows that."""
        if not plan.abortable_ids:
            return None

        def look() -> None:
            if self._request_arrived():
                raise StepInterrupted

        return look

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
        self._parts.adapters.close()
        self._parts.store.close()
