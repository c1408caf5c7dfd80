"""Plans in flight: which requests are in which plan, what they wait for, and which results count.

Stages compute plans one after another, in the order in which they were made, each as long as the
slowest one takes. So a plan may read and write over what those before it write to the cache, before
their results are there: only whether they have a result at all is not known yet. Decodes are
divided evenly: with as many plans as stages, each of about as many decodes, no stage is idle.

A request that draws a token waits for its plan's result. A part of a prompt that draws nothing
brings no result: the next part may be in the next plan, and its tokens count as computed when they
are planned. So a single prompt keeps all stages at work.

Where a result says that blocks have no content, the requests of later plans that read them have to
be computed anew. A request in several plans in flight has its blocks until the last one's result is
there, and none of these counts after one that does not.

A request that ends by an outside cause, such as an abort, is told so at once, and has its blocks
until the results of its plans are there.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from quire.core.errors import RequestFailure
from quire.core.step import (
    NotComputed,
    ScheduledRequest,
    SchedulerOutput,
    SequenceResult,
    StepOutput,
)
from quire.engine.cache.kv_cache_manager import KVCacheManager
from quire.engine.engine_output import EngineOutput
from quire.engine.executor import StepHandle
from quire.engine.request import Request


@dataclass(slots=True)
class PlanInFlight:
    """A plan whose result is not there yet.

    Attributes:
        plan: The plan that is computed.
        handle: The handle that its result is asked from.
        tables: Block tables, as of this plan, of its requests that may be in the next plan, too.
        invalid_blocks: Blocks that were found to have no content when the plan read them.
    """

    plan: SchedulerOutput
    handle: StepHandle
    tables: dict[str, list[int]]
    invalid_blocks: set[int] = field(default_factory=set)


class PlansInFlight:
    """All plans in flight, oldest first, and their requests.

    Args:
        depth: Number of plans in flight at once, at most.
        kv: Blocks of all requests.
        requests: The scheduler's live requests, by id.
        end: Call that ends a sequence which is in no plan, for a reason.

    Attributes:
        depth: Number of plans in flight at once, at most.
        deferred: Running requests that are not in the next plan.
    """

    def __init__(
        self,
        depth: int,
        kv: KVCacheManager,
        requests: Mapping[str, Request],
        end: Callable[[Request, str], EngineOutput],
    ) -> None:
        self.depth = depth
        self.deferred: Set[str] = frozenset()
        self._kv = kv
        self._requests = requests
        self._end = end
        self._plans: deque[PlanInFlight] = deque()
        self._num_plans: Counter[str] = Counter()  # by request
        self._waiting: set[str] = set()  # the requests among these that wait for results
        self._planned_times: deque[float] = deque()
        self._ended_time = 0.0
        self._ending: dict[tuple[str, int], tuple[Request, str]] = {}
        # By request, its failure; None: computed anew.
        self._invalid: dict[str, RequestFailure | None] = {}
        self._unforked_ids: list[str] = []

    def __len__(self) -> int:
        return len(self._plans)

    def __contains__(self, request_id: str) -> bool:
        """Return whether a plan with a request is in flight, or one that it splits off in."""
        return request_id in self._num_plans

    @property
    def is_full(self) -> bool:
        """Whether no further plan can begin."""
        return len(self._plans) >= self.depth

    @property
    def is_idle(self) -> bool:
        """Whether no request is in a plan in flight, or deferred to a later one."""
        return not (self._num_plans or self.deferred)

    def defer(self, running: Sequence[Request], unready: Set[str]) -> Set[str]:
        """Choose the requests that sit the next plan out.

        Args:
            running: All running requests, oldest first.
            unready: Ids of requests that cannot be in the plan.

        Returns:
            The ids of ``unready`` and of :attr:`deferred`.
        """
        if self.depth == 1:
            return unready
        decodes = [request for request in running if request.decodes]
        free = [r.request_id for r in decodes if r.request_id not in self._waiting | unready]
        num_left = max(self.depth - len(self._planned_times), 1)
        share = min(-(-len(free) // num_left), -(-len(decodes) // self.depth))
        self.deferred = self._waiting.union(free[share:])
        return unready | self.deferred

    def num_decodes(self, running: Sequence[Request]) -> int:
        """Return how many requests decode in the next plan."""
        if not self.deferred:
            return sum(request.decodes for request in running)
        return sum(r.decodes for r in running if r.request_id not in self.deferred)

    def planned(self, plan: SchedulerOutput, now: float) -> None:
        """Count the requests of a plan that was made at ``now`` as in flight."""
        self._planned_times.append(now)
        if self.depth == 1:
            return
        self._num_plans.update(_ids(plan))
        self._waiting.update(fork.child_id for fork in plan.forks)
        for row in plan.scheduled:
            request = self._requests[row.request_id]
            if _brings_nothing(row, request):
                request.num_computed_tokens += row.num_scheduled_tokens
            else:
                self._waiting.add(row.request_id)

    def begin(self, plan: SchedulerOutput, handle: StepHandle) -> None:
        """Add a plan that execution has begun."""
        tables: dict[str, list[int]] = {}
        if self.depth > 1:
            for row in plan.scheduled:
                if row.request_id not in self._waiting:
                    request = self._requests[row.request_id]
                    tables[row.request_id] = self._kv.block_ids(request)
        self._plans.append(PlanInFlight(plan, handle, tables))

    def pop(self) -> PlanInFlight:
        """Return the oldest plan, whose result comes next."""
        return self._plans.popleft()

    def ended(self, plan: SchedulerOutput, now: float) -> float:
        """End a plan whose result is there; return the seconds that its stages worked on it.

        They count from when it was made, or from the end of the plan before it.
        """
        seconds = now - max(self._planned_times.popleft(), self._ended_time)
        self._ended_time = now
        if self.depth > 1:
            for request_id in _ids(plan):
                self._num_plans[request_id] -= 1
                if not self._num_plans[request_id]:
                    del self._num_plans[request_id]
                    self._waiting.discard(request_id)
        return seconds

    def clear(self) -> None:
        """Forget all plans and endings."""
        self._plans.clear()
        self._ending.clear()
        self._invalid.clear()

    def judge(self, ended: PlanInFlight, result: StepOutput) -> None:
        """Take from a plan's result what does not count, and mark it in later plans."""
        if self.depth == 1:
            return
        failed = {name for name, found in result.results.items() if found.error is not None}
        unsure = failed | result.not_computed.keys()
        if not (unsure or ended.invalid_blocks or self._invalid or result.lost_block_ids):
            return
        invalid, wrong = ended.invalid_blocks, set(result.lost_block_ids)
        for row in ended.plan.scheduled:
            name, request = row.request_id, self._requests[row.request_id]
            table = ended.tables.get(name) or self._kv.block_ids(request)
            written = _written(row, table, self._kv.block_size)
            is_lost = result.not_computed.get(name) is NotComputed.LOST
            is_lost = is_lost or not invalid.isdisjoint(table)
            has_later = self._num_plans[name] > 1
            if (is_lost or name in unsure) and has_later and name not in self._invalid:
                is_error = name in failed and not is_lost
                self._invalid[name] = result.results[name].error if is_error else None
                self._waiting.add(name)
            if name in self._invalid:
                for block_id in written:
                    self._kv.pool.forget(block_id)
                is_lost = True
            if is_lost or name in unsure:
                wrong.update(written)
            if is_lost:
                request.was_lost = True
                invalid.update(written)  # for those after it in the plan
                self._discard(ended.plan, name, result, has_later)
                if not has_later:
                    self._invalid.pop(name, None)
        for later in self._plans:
            later.invalid_blocks |= wrong

    def _discard(
        self, plan: SchedulerOutput, name: str, result: StepOutput, has_later: bool
    ) -> None:
        """Take a request from a result that does not count, with those that were to split off.

        Args:
            plan: The plan of the result.
            name: The request's id.
            result: The plan's result; afterwards without the request, or with its end alone.
            has_later: Whether the request is in later plans, which have to end first.
        """
        error = self._invalid.get(name)  # None: the request is computed anew
        children = [fork.child_id for fork in plan.forks if fork.parent_id == name]
        result.not_computed.pop(name, None)
        for one in (name, *children):
            found = result.results.pop(one, None)
            if error is not None and not has_later:
                result.results[one] = SequenceResult(error=error)
            elif found is not None and one != name:
                self._unforked_ids.append(one)
        if error is None and not has_later:
            result.not_computed[name] = NotComputed.LOST

    def live(self, group: Sequence[Request]) -> list[Request]:
        """Return the sequences of a group whose end has not been reported."""
        return [one for one in group if (one.group_id, one.index) not in self._ending]

    def is_ending(self, group_id: str) -> bool:
        """Return whether sequences of a request whose end was reported are still in flight."""
        return any(name == group_id for name, _ in self._ending)

    def end(self, sequence: Request, reason: str) -> EngineOutput:
        """End one of :meth:`live` now, or when its plan's result is there."""
        if not self._is_in_flight(sequence):
            return self._end(sequence, reason)
        if sequence.request_id in self._num_plans:
            self._waiting.add(sequence.request_id)
        self._ending[sequence.group_id, sequence.index] = sequence, reason
        return EngineOutput.of(sequence, SequenceResult(), reason)

    def settle(self, outputs: list[EngineOutput]) -> list[EngineOutput]:
        """End sequences whose last plan has ended; return outputs without ended sequences."""
        if not self._ending:
            return outputs
        outputs = [one for one in outputs if (one.request_id, one.index) not in self._ending]
        for key, (sequence, reason) in list(self._ending.items()):
            if not self._is_in_flight(sequence):
                del self._ending[key]
                if sequence.finish_reason is None:
                    self._end(sequence, reason)
        return outputs

    def fill(self, plan: SchedulerOutput) -> None:
        """Name to the runner the sequences that split off in a step whose result does not count."""
        if plan.scheduled:  # else it most likely learns nothing of the plan
            plan.finished_request_ids += self._unforked_ids
            self._unforked_ids = []

    def _is_in_flight(self, sequence: Request) -> bool:
        """Return whether a plan with a sequence, or with its parent before the split, is in
        flight.
        """
        parent = self._requests.get(sequence.parent_id)
        is_pending = parent is not None and sequence in parent.pending_children
        return sequence.request_id in self or (is_pending and sequence.parent_id in self)


def _ids(plan: SchedulerOutput) -> list[str]:
    return [row.request_id for row in plan.scheduled] + [fork.child_id for fork in plan.forks]


def _brings_nothing(row: ScheduledRequest, request: Request) -> bool:
    """Return whether a request may be in the next plan before a row of it has been computed."""
    if request.was_lost:  # so that it comes to its end, whatever happens to others
        return False
    is_part = row.num_computed_tokens + row.num_scheduled_tokens < len(request.token_ids)
    return is_part and request.params.pooling is None and request.params.prompt_logprobs is None


def _written(row: ScheduledRequest, table: list[int], block_size: int) -> list[int]:
    """Return the blocks of a table that a row of a plan writes."""
    stop = row.num_computed_tokens + row.num_scheduled_tokens + row.num_lookahead_tokens
    return table[row.num_computed_tokens // block_size : -(-stop // block_size)]
