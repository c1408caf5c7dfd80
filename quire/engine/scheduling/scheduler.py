"""The scheduler: it plans steps and applies their results; it computes no tokens."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Container, Sequence, Set
from operator import attrgetter

from quire.core.step import (
    Fork,
    NotComputed,
    ScheduledRequest,
    SchedulerOutput,
    SequenceResult,
    StepOutput,
)
from quire.engine.cache.block_pool import NULL_BLOCK
from quire.engine.cache.kv_cache_manager import Allocation, KVCacheManager
from quire.engine.cache.retained_blocks import RetainedBlocks
from quire.engine.engine_output import EngineOutput
from quire.engine.gates.gates import Gate, next_request
from quire.engine.pipeline import PlansInFlight
from quire.engine.request import Request, RequestStatus
from quire.engine.scheduling.abortable_chunks import AbortableChunks
from quire.engine.scheduling.admission import Admission, Growth, GrowthForecast
from quire.engine.scheduling.fair_queue import OUTPUT_TOKEN_COST, PROMPT_TOKEN_COST, FairQueue
from quire.engine.scheduling.lookahead import Lookahead, LookaheadPolicy
from quire.engine.scheduling.picture_boundaries import tokens_of_whole_pictures
from quire.engine.scheduling.prefill_policy import PrefillDivision, PrefillPolicy
from quire.engine.scheduling.prompt_logprobs_budget import PromptLogprobsBudget
from quire.engine.scheduling.sequence_groups import SequenceGroups
from quire.engine.scheduling.stop_conditions import check_stop
from quire.engine.stats import EngineStats
from quire.settings.config import SchedulerOptions

_order = attrgetter("order")


class Scheduler:
    """Keeps waiting and running requests and plans steps.

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
        self.kept = RetainedBlocks(kv)
        self.stats = EngineStats()
        self.waiting = FairQueue(clock)
        self.running: list[Request] = []  # sorted by order
        self.requests: dict[str, Request] = {}
        self.pipeline = PlansInFlight(depth, kv, self.requests, self.end)
        self._prompt_rows = PromptLogprobsBudget(False)  # of the step that is planned
        self._groups = SequenceGroups(options.max_num_seqs // 2)
        self._eos_token_ids = eos_token_ids
        self._use_cache = use_cache
        self._clock = clock
        self._planned_time = 0.0
        self._ended: list[str] = []  # the runner does not know yet
        self.held: dict[str, RequestStatus] = {}  # requests that are held: their status before
        self._abortable = AbortableChunks()
        self.gates: list[Gate] = []
        self.lookahead = None if lookahead is None else Lookahead(kv, lookahead, options)

    def add(self, request: Request, others: Sequence[Request] = ()) -> None:
        """Queue a request that can fit (the engine has checked), with its pending children.

        Args:
            request: The first of its sequences, or of a part of them.
            others: The first sequences of the other parts, which start after it.
        """
        group = [one for head in (request, *others) for one in (head, *head.pending_children)]
        for sequence in group:
            self.requests[sequence.request_id] = sequence
        self._groups.add(group)
        self._groups.keep_back(others)
        self.stats.num_sequences_added += len(group)
        if self.running or len(self.waiting):
            self.prefill.chunk_size.joined(self._clock())
        self.kept.added(request)
        self.waiting.push(request)

    def _queue_parts(self, request: Request) -> None:
        """Queue parts of a request that start now: a sequence of it draws, or has ended."""
        for head in self._groups.next_parts(request.group_id):
            self.kept.added(head)
            self.waiting.push(head)

    def hold(self, request: Request) -> None:
        """Keep a queued request from starting until :meth:`release`: something is on the way."""
        self.waiting.remove(request)
        self.held[request.request_id] = request.status
        request.status = RequestStatus.WAITING_FOR_KV

    def release(self, request: Request) -> None:
        """Queue a request that was held."""
        request.status = self.held.pop(request.request_id)
        self.waiting.push(request)

    def group(self, group_id: str) -> list[Request]:
        """Return the live sequences of a user's request; empty when unknown or finished."""
        return self._groups.live(group_id)

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
            plan.finished_request_ids, self._ended = self._ended, []
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
        outputs: list[EngineOutput] = []
        for scheduled in plan.scheduled:
            request = self.requests[scheduled.request_id]
            why = result.not_computed.get(scheduled.request_id)
            if why is NotComputed.LOST:
                self._lose(request)
                continue
            if why is NotComputed.DROPPED:
                self.stats.num_dropped_parts += 1
                self.kv.take_back(request)
                continue
            num_computed = scheduled.num_computed_tokens + scheduled.num_scheduled_tokens
            if request.num_lost_tokens > scheduled.num_computed_tokens:
                self.stats.recomputed(request, scheduled)
            request.num_computed_tokens = max(request.num_computed_tokens, num_computed)
            splits = scheduled.samples and request.pending_children
            children = self._fork(request) if splits else []
            for sequence in (request, *children):
                found = result.results.get(sequence.request_id)
                assert found or not scheduled.samples, f"{sequence.request_id}: no result"
                if found is None:
                    continue
                if found.prompt_logprobs is not None:
                    found.prompt_logprobs = sequence.unreported(found.prompt_logprobs)
                if found.error is not None:
                    outputs += self._fail(sequence, found)
                elif found.token_ids:
                    num_slots = scheduled.num_lookahead_tokens
                    outputs.append(self._append_tokens(sequence, found, now, num_slots))
                elif found.embedding is not None:
                    self._finish(sequence, "stop")
                    outputs.append(EngineOutput.of(sequence, found, "stop"))
                elif found.prompt_logprobs is not None:
                    outputs.append(EngineOutput.of(sequence, found))
        if result.lost_block_ids:
            for block_id in result.lost_block_ids:
                self.kv.pool.forget(block_id)
            self.kept.lost(result.lost_block_ids)
        if result.not_computed or any(output.finish_reason for output in outputs):
            self.running = [r for r in self.running if r.status is RequestStatus.RUNNING]
        return outputs

    def end(self, request: Request, reason: str) -> EngineOutput:
        """End a sequence in whatever state it is, between steps; its blocks are free at once."""
        if request in self.waiting:
            self.waiting.remove(request)
        elif request.status is RequestStatus.RUNNING:
            del self.running[bisect_left(self.running, request.order, key=_order)]
        else:
            self.held.pop(request.request_id, None)
        self._finish(request, reason)
        return EngineOutput.of(request, SequenceResult(), reason)

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
            self._preempt(victim)
            if victim is request:
                return None

    def _preempt(self, request: Request) -> None:
        self.admission.preempted()
        self.kv.free(request)
        self._requeue(request)

    def _lose(self, request: Request) -> None:
        """Requeue a request whose step read blocks without content: it is computed anew."""
        self.kv.free(request, forget=True)
        self._requeue(request)

    def _requeue(self, request: Request) -> None:
        request.status = RequestStatus.PREEMPTED
        self.stats.preempted(request)
        request.num_computed_tokens = 0
        self._ended.append(request.request_id)
        self.waiting.push(request)

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
        request.status = RequestStatus.RUNNING
        insort(self.running, request, key=_order)
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

    def _fork(self, request: Request) -> list[Request]:
        children, request.pending_children = request.pending_children, []
        for child in children:
            child.token_ids = list(request.token_ids)
            child.num_computed_tokens = request.num_computed_tokens
            self.stats.forked(request, child)
            child.status = RequestStatus.RUNNING
            self.kv.fork(request, child)
            insort(self.running, child, key=_order)
        self._queue_parts(request)
        return children

    def _append_tokens(
        self, request: Request, result: SequenceResult, now: float, num_slots: int
    ) -> EngineOutput:
        """Append the next tokens up to the sequence's last, and end it there."""
        stop = None
        for count, token_id in enumerate(result.token_ids, start=1):
            request.token_ids.append(token_id)
            stop = check_stop(request, self._eos_token_ids)
            if stop is not None:
                if count < len(result.token_ids):
                    result = result.part(0, count)
                break
        request.num_computed_tokens += result.num_accepted
        if num_slots and self.lookahead is not None:
            self.lookahead.settle(request, result)
        self.stats.tokens_appended(request, result, now)
        self.waiting.charge(request.source.client, OUTPUT_TOKEN_COST * len(result.token_ids))
        if stop is not None:
            self._finish(request, stop[0])
            return EngineOutput.of(request, result, *stop)
        if not self._use_cache:
            request.num_computed_tokens = 0
        return EngineOutput.of(request, result)

    def _fail(self, request: Request, result: SequenceResult) -> list[EngineOutput]:
        """End a running sequence, and those that were to split off from it, with an error."""
        group = [request, *request.pending_children]
        self.kv.free(request, forget=True)
        for sequence in group:
            self._finish(sequence, "error")
        failure = SequenceResult(error=result.error)
        return [EngineOutput.of(sequence, failure, "error") for sequence in group]

    def _finish(self, request: Request, reason: str) -> None:
        """The one end of every sequence; the caller takes it out of queue or running list."""
        assert request.finish_reason is None, (
            f"{request.request_id}: {request.finish_reason}, {reason}"
        )
        if request.status is RequestStatus.RUNNING:
            self._ended.append(request.request_id)
        self.kept.ended(request, reason)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        self._abortable.ended(request)
        if self.lookahead is not None:
            self.lookahead.policy.ended(request)
        self.stats.finished[reason] += 1
        self.admission.ended(request, reason)
        del self.requests[request.request_id]
        self._groups.ended(request)
        self._queue_parts(request)
