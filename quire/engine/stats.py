"""The engine's counters, in all and per request; plain numbers, no exporter."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from quire.core.metrics import ITERATION_TOKENS_BUCKETS, HistogramCounts, Samples
from quire.core.step import ScheduledRequest, SchedulerOutput, SequenceResult
from quire.engine.request import Request

FINISH_REASONS = ("stop", "length", "abort", "timeout", "error")
#: Stages of a sequence in which a deadline may end it.
TIMEOUT_STAGES = ("queue", "prefill", "decode")
#: Parts of a step.
STAGES = ("schedule", "execute", "sample", "update")


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine was built; the scheduler calls one method for each event.

    Attributes:
        num_steps: Plans executed.
        num_computed_tokens: Token positions that went through the model, recomputation included.
        num_recomputed_tokens: Token positions computed again after a preemption lost them.
        num_preemptions: Requests whose blocks were taken back to recompute later.
        num_dropped_parts: Parts of prompts given up in the midst of a step.
        num_block_copies: Blocks copied on write.
        prompt_tokens: Prompt tokens of requests that were started; sequences that share a prompt's
            computation count once.
        generation_tokens: Output tokens.
        num_forced_tokens: Output tokens that a grammar decided without the model, since it allowed
            no other.
        prefix_cache_queries: Tokens looked up in the prefix cache, once per started request.
        prefix_cache_hits: Tokens found in the prefix cache.
        tier_queries: Prompt tokens that were not found there, and were looked up in tiers.
        tier_hits: Prompt tokens loaded from tiers.
        num_swapped_tokens: Tokens that a preemption lost and that were loaded again from tiers.
        num_sequences_added: Sequences added; when no work is left, as many have ended.
        finished: Sequences that ended, by finish reason.
        timeouts: Sequences that a deadline ended, by stage.
        step_seconds: Time spent, by stage of a step.
        iteration_tokens: Tokens of each step.
    """

    num_steps: int = 0
    num_computed_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_preemptions: int = 0
    num_dropped_parts: int = 0
    num_block_copies: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    num_forced_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    tier_queries: int = 0
    tier_hits: int = 0
    num_swapped_tokens: int = 0
    num_sequences_added: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    timeouts: Counter[str] = field(default_factory=Counter)
    step_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    iteration_tokens: HistogramCounts = field(
        default_factory=lambda: HistogramCounts(ITERATION_TOKENS_BUCKETS)
    )

    def step_planned(self, plan: SchedulerOutput) -> None:
        """A step with at least one request comes next."""
        self.num_steps += 1
        self.num_block_copies += len(plan.block_copies)
        num_tokens = plan.num_scheduled_tokens
        self.num_computed_tokens += num_tokens
        self.iteration_tokens.observe(num_tokens)

    def started(self, request: Request, now: float, *, looked_up: bool) -> None:
        """A request runs for the first time; ``looked_up``: its prompt, in the prefix cache."""
        request.metrics.first_scheduled_time = now
        self.prompt_tokens += request.num_prompt_tokens
        if looked_up:
            self.prefix_cache_queries += request.num_prompt_tokens

    def prefix_hit(self, request: Request, num_tokens: int) -> None:
        """Further tokens of a request were found in the prefix cache."""
        # Of prompts alone; and after a preemption its own blocks would be no saving.
        if request.num_output_tokens == request.metrics.num_preemptions == 0:
            request.num_cached_tokens += num_tokens
            self.prefix_cache_hits += num_tokens

    def looked_up(self, request: Request, num_tokens: int) -> None:
        """Tokens of a request that waits were looked up in tiers."""
        if request.num_output_tokens == request.metrics.num_preemptions == 0:
            self.tier_queries += num_tokens

    def loaded(self, request: Request) -> None:
        """A request starts with what tiers had of it."""
        if request.metrics.num_preemptions:
            self.num_swapped_tokens += request.num_loaded_tokens
        elif request.num_output_tokens == 0:
            request.num_cached_tokens += request.num_loaded_tokens
            self.tier_hits += request.num_loaded_tokens
        request.num_loaded_tokens = 0

    def forked(self, parent: Request, child: Request) -> None:
        """A sequence has split off."""
        child.num_cached_tokens = parent.num_cached_tokens
        child.metrics.first_scheduled_time = parent.metrics.first_scheduled_time

    def recomputed(self, request: Request, row: ScheduledRequest) -> None:
        """A step has computed tokens of a request, some of them lost before."""
        again = request.num_lost_tokens - row.num_computed_tokens
        self.num_recomputed_tokens += min(again, row.num_scheduled_tokens)

    def tokens_appended(self, request: Request, result: SequenceResult, now: float) -> None:
        """A step's tokens are part of a sequence."""
        self.generation_tokens += len(result.token_ids)
        self.num_forced_tokens += result.num_forced
        self.num_computed_tokens += result.num_proposed
        metrics = request.metrics
        metrics.last_token_time = now
        if metrics.first_token_time == 0.0:
            metrics.first_token_time = now

    def preempted(self, request: Request) -> None:
        """A request is about to lose what was computed of it."""
        request.num_lost_tokens = max(request.num_lost_tokens, request.num_computed_tokens)
        request.metrics.num_preemptions += 1
        self.num_preemptions += 1

    def samples(self) -> Samples:
        """Return the counters by metric stem."""
        hits, loaded = self.prefix_cache_hits, self.tier_hits
        computed = self.prompt_tokens - hits - loaded
        values: Samples = {
            "num_preemptions": self.num_preemptions,
            "preemption_recomputed_tokens": self.num_recomputed_tokens,
            "preemption_swapped_tokens": self.num_swapped_tokens,
            "prompt_tokens": self.prompt_tokens,
            'prompt_tokens_by_source{source="local_compute"}': computed,
            'prompt_tokens_by_source{source="local_cache_hit"}': hits,
            'prompt_tokens_by_source{source="external_kv_transfer"}': loaded,
            "prompt_tokens_cached": hits + loaded,
            'prompt_tokens_cached_by_source{source="local_cache_hit"}': hits,
            'prompt_tokens_cached_by_source{source="external_kv_transfer"}': loaded,
            "generation_tokens": self.generation_tokens,
            "structured_output_forced_tokens": self.num_forced_tokens,
            "prefix_cache_queries": self.prefix_cache_queries,
            "prefix_cache_hits": hits,
            "external_prefix_cache_queries": self.tier_queries,
            "external_prefix_cache_hits": loaded,
            "num_steps": self.num_steps,
            "num_computed_tokens": self.num_computed_tokens,
            "dropped_prompt_parts": self.num_dropped_parts,
            "num_block_copies": self.num_block_copies,
            "num_sequences_added": self.num_sequences_added,
            "iteration_tokens_total": self.iteration_tokens.state(),
        }
        for reason in FINISH_REASONS:
            values[f'request_success{{finished_reason="{reason}"}}'] = self.finished[reason]
        for stage in TIMEOUT_STAGES:
            values[f'request_timeouts{{stage="{stage}"}}'] = self.timeouts[stage]
        for stage in STAGES:
            values[f'step_seconds{{stage="{stage}"}}'] = self.step_seconds[stage]
        return values


class StepWatch:
    """Adds the time of each stage of one step to ``seconds``."""

    __slots__ = ("_last", "_seconds")

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Count the time since the last lap."""
        now = time.perf_counter()
        self._seconds[stage] += now - self._last
        self._last = now

    def move(self, seconds: float, source: str, target: str) -> None:
        """Count ``seconds`` of one stage as another's."""
        self._seconds[source] -= seconds
        self._seconds[target] += seconds
