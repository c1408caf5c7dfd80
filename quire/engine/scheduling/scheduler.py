"""The scheduler: it decides what runs in a step. It computes no tokens.

What a step's result means for its sequences is in :mod:`quire.engine.scheduling.step_results`, how
sequences change state in :mod:`quire.engine.scheduling.live_sequences`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence, Set

from quire.core.step import Fork, NotComputed, ScheduledRequest, SchedulerOutput, StepOutput
from quire.engine.cache.block_pool import NULL_BLOCK
from quire.engine.cache.kv_cache_manager import Allocation, KVCacheManager
from quire.engine.engine_output import EngineOutput
from quire.engine.gates.gates import Gate, next_request
from quire.engine.pipeline import PlansInFlight
from quire.engine.request import Request, RequestStatus
from quire.engine.scheduling.abortable_chunks import AbortableChunks
from quire.engine.scheduling.admission import Admission, Growth, GrowthForecast
from quire.engine.scheduling.fair_queue import PROMPT_TOKEN_COST
from quire.engine.scheduling.live_sequences import LiveSequences
from quire.engine.scheduling.lookahead import Lookahead, LookaheadPolicy
from quire.engine.scheduling.picture_boundaries import tokens_of_whole_pictures
from quire.engine.scheduling.prefill_policy import PrefillDivision, PrefillPolicy
from quire.engine.scheduling.prompt_logprobs_budget import PromptLogprobsBudget
from quire.engine.scheduling.step_results import StepResults
from quire.settings.config import SchedulerOptions


class Scheduler:
    """Plans steps of the running requests and of those that may start.

    There are no phases: a step gives each request some of the tokens that it has and has not
    computed, ``num_tokens - num_computed_tokens``. Every decode runs in each step; what prompts
    get is divided by :class:`PrefillPolicy`. Blocks are given to running requests first, oldest
    first, and :class:`Admission` starts no more than will most likely fit to their ends. When
    blocks run out all the same, the youngest running request is preempted: it recomputes later,
    from its place in the queue and from what the prefix cache still has of it. So the oldest
    advances at least every third step, and all others in turn.

    A request with ``n`` > 1, or a part of it (see :mod:`quire.engine.scheduling.sequence_groups`),
    takes its places of ``max_num_seqs`` from its admission on, though its other sequences split off
    only when the prompt is computed; they share its blocks and live on alone.

    Args:
        options: Limits and policy.
        kv: Blocks of all requests.
        eos_token_ids: End-of-sequence ids.
        use_cache: Whether the KV cache is used; else each new token recomputes all before it.
        clock: The engine's monotonic clock, in seconds.
        takes_more: Whether requests may be added while others run.
        lookahead: The policy of how many tokens may be proposed for each request; None for none.
        depth: Number of plans in flight at once, at most.
    """

    def __init__(
        self,
        options: SchedulerOptions,
        kv: KVCacheManager,
        eos_token_ids: Container[int],
        use_cache: bool,
        clock: Callable[[], float],
        takes_more: bool = True,
        lookahead: LookaheadPolicy | None = None,
        depth: int = 1,
    ) -> None:
        self.options = options
        self.kv = kv
        self.prefill = PrefillPolicy(options, takes_more and use_cache)
        self.admission = Admission(kv)
        self.sequences = LiveSequences(kv, options.max_num_seqs // 2, clock, self._finished)
        self.requests, self.running = self.sequences.by_id, self.sequences.running
        self.waiting, self.held = self.sequences.waiting, self.sequences.held
        self.kept, self.stats = self.sequences.kept, self.sequences.stats
        self.pipeline = PlansInFlight(depth, kv, self.requests, self.sequences.end)
        self._prompt_rows = PromptLogprobsBudget(False)  # of the step that is planned
        self._clock = clock
        self._planned_time = 0.0
        self._abortable = AbortableChunks()
        self.gates: list[Gate] = []
        self.lookahead = None if lookahead is None else Lookahead(kv, lookahead, options)
        self._results = StepResults(self.sequences, kv, eos_token_ids, use_cache)

    def add(self, request: Request, others: Sequence[Request] = ()) -> None:
        """Queue a request that can fit (the engine has checked), with its pending children.

        Args:
            request: The first of its sequences, or of a part of them.
            others: The first sequences of the other parts, which start after it.
        """
        if self.running or len(self.waiting):
            self.prefill.chunk_size.joined(self._clock())
        self.sequences.add(request, others)

    def hold(self, request: Request) -> None:
        """Keep a queued request from starting until :meth:`release`: something is on the way."""
        self.sequences.hold(request)

    def release(self, request: Request) -> None:
        """Queue a request that was held."""
        self.sequences.release(request)

    def _finished(self, request: Request, reason: str) -> None:
        """Forget what was learnt of a sequence that has ended."""
        self._abortable.ended(request)
        if self.lookahead is not None:
            self.lookahead.policy.ended(request)
        self.admission.ended(request, reason)

    def schedule(self, unready: Set[str] = frozenset()) -> SchedulerOutput:
        """Plan the next step; with nothing to do the plan's ``scheduled`` is empty.

        Args:
            unready: Running requests that sit this step out.
        """
        plan, self._prompt_rows = SchedulerOutput(), PromptLogprobsBudget(self.prefill.divides)
        unready = self.pipeline.defer(self.running, unready)
        self._planned_time = self._clock()
        outlook = self.admission.outlook(self.running)
        division = self._divide(unready, outlook) if self.prefill.divides else None
        num_running = len(self.running)
        room = self._schedule_running(plan, division, unready)
        if len(self.running) < num_running:  # some were preempted
            outlook = self.admission.outlook(self.running)
        if division is None:
            division = PrefillDivision(
                {}, room, room, room if self.options.enable_chunked_prefill else 0
            )
        self._schedule_waiting(plan, division, min(room, division.room), outlook)
        if not plan.scheduled:  # what was to start has found no blocks
            self._schedule_running(plan, None, unready)
            is_stuck = not plan.scheduled and len(self.waiting) and self.pipeline.is_idle
            if is_stuck and self.kept.give_up():
                return self.schedule(unready)
        if plan.scheduled:
            if self.lookahead is not None:
                self.lookahead.extend(plan, self.requests, len(self.running))
            self.stats.step_planned(plan)
            self.admission.step_planned()
            sequences = self.sequences
            plan.finished_request_ids, sequences.ended_ids = sequences.ended_ids, []
            self.pipeline.planned(plan, self._planned_time)
            if self.prefill.divides and self.pipeline.depth == 1:
                plan.abortable_ids = self._abortable.choose(plan, self.requests)
        else:
            num_live = len(self.running) + len(self.waiting)
            wait = not self.pipeline.is_idle or any(r.request_id in unready for r in self.running)
            assert wait or not num_live, f"0 of {num_live} requests can run; {self.kv.describe()}"
        return plan

    def update_from_output(self, plan: SchedulerOutput, result: StepOutput) -> list[EngineOutput]:
        """Apply a step's results; return an output for each sequence that has one."""
        now = self._clock()
        dropped = result.ids(NotComputed.DROPPED)
        self._abortable.step_ended(plan, dropped)
        self.prefill.chunk_size.is_sure = self._abortable.owes
        if plan.scheduled:
            seconds = self.pipeline.ended(plan, now)
            if not dropped:
                self.prefill.step_ended(plan, self.requests, seconds)
            if self.lookahead is not None:
                self.lookahead.step_ended(plan, result, seconds)
        return self._results.apply(plan, result, now, self.lookahead)

    def _schedule_running(
        self, plan: SchedulerOutput, division: PrefillDivision | None, unready: Container[str]
    ) -> int:
        """Plan running requests, oldest first; return the tokens left of the budget.

        Args:
            division: Tokens of each prompt; None to give each what is left.
        """
        running = self.running
        num_to_decode = self.pipeline.num_decodes(self.running)
        budget = self.prefill.budget(num_to_decode)
        left = self.options.max_num_batched_tokens
        position = 0
        while position < len(running) and budget > 0:
            request = running[position]
            num_new_tokens = len(request.token_ids) - request.num_computed_tokens
            hits: Sequence[int] = ()
            num_to_decode -= request.decodes and request.request_id not in self.pipeline.deferred
            if request.request_id in unready:
                position += 1
                continue
            if num_new_tokens > 1:
                room = max(budget - num_to_decode, 1)
                may_cut = self.options.enable_chunked_prefill or request.decodes
                if division is not None and not request.decodes:
                    room = min(room, division.shares.get(request.request_id, 0))
                room = self._prompt_rows.most(request, room)
                if room:
                    hits = self.kv.get_computed_blocks(request)
                num_missing = self._num_missing(request, hits)
                num_new_tokens = self.prefill.chunk(num_missing, room, room if may_cut else 0)
                most = left - num_to_decode
                start = request.num_computed_tokens + len(hits) * self.kv.block_size
                num_whole = tokens_of_whole_pictures(request, start, num_new_tokens, most)
                # A whole picture may be more than a step has for prompts; decodes run all the same.
                budget += max(num_whole - num_new_tokens, 0)
                num_new_tokens = num_whole
            if num_new_tokens:
                allocation = self._allocate_or_preempt(request, num_new_tokens, hits)
                if allocation is None:
                    break
                self._apply_hits(request, hits)
                self._plan_request(plan, request, num_new_tokens, allocation)
                left -= num_new_tokens
                budget = min(budget - num_new_tokens, left)
            position += 1
        return budget

    def _divide(self, unready: Container[str], outlook: GrowthForecast) -> PrefillDivision:
        """Divide the tokens that the next step has for prompts."""
        num_decodes = self.pipeline.num_decodes(self.running)
        prompts = [
            (request, self._num_missing(request))
            for request in self.running
            if not request.decodes and request.request_id not in unready
        ]
        found = self._next_request(outlook)
        head = None if found is None else (found[0], self._num_missing(found[0], found[1]))
        limits = self.prefill.limits(self._planned_time, num_decodes)
        return self.prefill.divide(prompts, head, len(self.waiting), limits)

    def _next_request(self, outlook: GrowthForecast) -> tuple[Request, list[int], Growth] | None:
        """Return a request that may start now, its prefix hits and its growth; None for none."""
        if outlook.num_seqs >= self.options.max_num_seqs:
            return None
        request = next_request(self.gates, self)
        if request is None:
            return None
        if outlook.num_seqs + 1 + len(request.pending_children) > self.options.max_num_seqs:
            return None
        hits = self.kv.get_computed_blocks(request)
        own = self.admission.own_growth(request, hits)
        return (request, hits, own) if self.admission.admits(outlook, own) else None

    def _num_missing(self, request: Request, hits: Sequence[int] | None = None) -> int:
        """Return how many tokens of a request are neither computed nor found in the cache."""
        if hits is None:
            hits = self.kv.get_computed_blocks(request)
        num_found = request.num_computed_tokens + len(hits) * self.kv.block_size
        return request.num_tokens - num_found

    def _schedule_waiting(
        self, plan: SchedulerOutput, division: PrefillDivision, room: int, outlook: GrowthForecast
    ) -> None:
        """Start waiting requests, in order, while slots, blocks and room for tokens last."""
        if self.running and self.options.batching_type == "static":
            return
        left = self.options.max_num_batched_tokens - plan.num_scheduled_tokens
        while room > 0 and (found := self._next_request(outlook)) is not None:
            request, hits, own = found
            num_missing = self._num_missing(request, hits)
            if request.num_output_tokens and request.params.structured_outputs:
                # Its grammar has all of the output to follow: no token can be drawn in this step.
                if num_missing == 1:
                    hits = self.kv.get_computed_blocks(request, num_left=2)
                num_missing = self._num_missing(request, hits) - 1
            longest = min(room, division.whole)
            longest = self._prompt_rows.most_of_new(request, longest, self.running)
            num_new_tokens = self.prefill.chunk(num_missing, longest, division.first_part)
            start = request.num_computed_tokens + len(hits) * self.kv.block_size
            num_new_tokens = tokens_of_whole_pictures(request, start, num_new_tokens, left)
            if num_new_tokens == 0:
                break
            # Room for the whole prompt, or its next chunks would only preempt one another.
            allocation = self.kv.allocate_slots(
                request, num_new_tokens, hits, num_reserve_tokens=request.num_tokens
            )
            if allocation is None:
                break
            self.waiting.remove(request)
            outlook.add(1 + len(request.pending_children), own)
            self._start(plan, request, hits)
            self._plan_request(plan, request, num_new_tokens, Allocation([], allocation.copy))
            room -= num_new_tokens
            left -= num_new_tokens

    def _allocate_or_preempt(
        self, request: Request, num_new_tokens: int, hits: Sequence[int]
    ) -> Allocation | None:
        """Allocate, preempting the youngest, unless its step is under way, as often as needed."""
        while True:
            allocation = self.kv.allocate_slots(request, num_new_tokens, hits)
            if allocation is not None:
                return allocation
            if self.kept.give_up():
                continue
            if self.running[-1].request_id in self.pipeline:
                return None
            victim = self.running.pop()
            self.admission.preempted()
            self.sequences.preempt(victim)
            if victim is request:
                return None

    def _start(self, plan: SchedulerOutput, request: Request, hits: Sequence[int]) -> None:
        if request.status is RequestStatus.WAITING:
            looked_up = self.kv.enable_prefix_caching and not request.needs_whole_prompt
            self.stats.started(request, self._clock(), looked_up=looked_up)
            if request.num_computed_tokens:  # of the one that it continues, or with those loaded
                num_tokens = request.num_computed_tokens - request.num_loaded_tokens
                self.stats.prefix_hit(request, num_tokens)
            missing = self._num_missing(request, hits)
            self.waiting.charge(request.source.client, PROMPT_TOKEN_COST * missing)
        self.stats.loaded(request)
        self.kept.started(request)
        self._apply_hits(request, hits)
        self.sequences.start(request)
        plan.new_requests.append(request.announced(self.kv.block_ids(request)))

    def _apply_hits(self, request: Request, hits: Sequence[int]) -> None:
        if hits:
            num_tokens = len(hits) * self.kv.block_size
            request.num_computed_tokens += num_tokens
            self.stats.prefix_hit(request, num_tokens)

    def _plan_request(
        self, plan: SchedulerOutput, request: Request, num_new_tokens: int, allocation: Allocation
    ) -> None:
        request_id, num_computed = request.request_id, request.num_computed_tokens
        num_tokens = len(request.token_ids)
        self._prompt_rows.take(request, num_new_tokens)
        ends = num_computed + num_new_tokens == num_tokens
        samples = ends and request.params.pooling is None
        assert num_computed + num_new_tokens <= num_tokens, f"{request_id}: more than it has"
        plan.num_scheduled_tokens += num_new_tokens
        plan.scheduled.append(
            ScheduledRequest(
                request_id, num_computed, num_new_tokens, allocation.new_block_ids, samples
            )
        )
        if copy := allocation.copy:
            plan.block_copies.append((copy.source, copy.destination))
            plan.replaced_blocks.append((request_id, copy.index, copy.destination))
        for index in allocation.unseen:
            plan.replaced_blocks.append((request_id, index, NULL_BLOCK))
        if samples:
            for child in request.pending_children:
                plan.forks.append(Fork(request_id, child.request_id, child.params, child.seed))
