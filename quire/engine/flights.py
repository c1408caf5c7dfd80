"""Plans under way, whose results come in their order, and what their requests wait for.

Stages compute plans in the order in which they were made. So a plan may read and write over what
those before it write to the cache, before their results are there: whether they have one at all is
the only thing that is not known. Where a result says that blocks have no content, the requests of
later plans that read them have to be computed anew. One that is in several plans under way has its
blocks until the last one's result is there, and none of these counts after one that does not.

A request that ends by what comes from outside, such as an abort, is told so at once, and has its
blocks until the results of its plans are there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from quire.core.errors import RequestFailure
from quire.core.step import (
    NotComputed,
    ScheduledRequest,
    SchedulerOutput,
    SequenceResult,
    StepOutput,
)
from quire.engine.engine_output import EngineOutput
from quire.engine.executor import StepHandle
from quire.engine.request import Request
from quire.engine.scheduling.scheduler import Scheduler


@dataclass(slots=True)
class Flight:
    """A plan under way.

    Attributes:
        plan: The plan that is computed.
        handle: The handle that its result is asked from.
        tables: Block tables, as of this plan, of its requests that may be in the next plan, too.
        spoiled: Blocks that were found to have no content when the plan read them.
    """

    plan: SchedulerOutput
    handle: StepHandle
    tables: dict[str, list[int]]
    spoiled: set[int] = field(default_factory=set)


class Flights:
    """All plans under way.

    Args:
        depth: Number of plans under way at once, at most.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._flights: deque[Flight] = deque()
        self._ending: dict[tuple[str, int], tuple[Request, str]] = {}
        # By request; None where it is computed anew.
        self._doomed: dict[str, RequestFailure | None] = {}
        self._never_split_off: list[str] = []

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def are_all_under_way(self) -> bool:
        """Whether there can be no further one."""
        return len(self._flights) >= self.depth

    def add(self, plan: SchedulerOutput, handle: StepHandle, scheduler: Scheduler) -> None:
        """A plan has begun."""
        tables: dict[str, list[int]] = {}
        if self.depth > 1:
            for row in plan.scheduled:
                if not scheduler.turns.waits(row.request_id):
                    request = scheduler.requests[row.request_id]
                    tables[row.request_id] = scheduler.kv.block_ids(request)
        self._flights.append(Flight(plan, handle, tables))

    def clear(self) -> None:
        """Forget all plans and requests."""
        self._flights.clear()
        self._ending.clear()
        self._doomed.clear()

    def pop(self) -> Flight:
        """Return the oldest one, whose result comes next."""
        return self._flights.popleft()

    def apply(self, flight: Flight, result: StepOutput, scheduler: Scheduler) -> list[EngineOutput]:
        """Apply what a plan brought; return what its sequences have of it."""
        if self.depth > 1:
            self._judge(flight, result, scheduler)
        outputs = scheduler.update_from_output(flight.plan, result)
        return self._end_landed(scheduler, outputs) if self._ending else outputs

    def _judge(self, flight: Flight, result: StepOutput, scheduler: Scheduler) -> None:
        """Take from a result what does not count, and mark it in later plans."""
        failed = {name for name, found in result.results.items() if found.error is not None}
        unsure = failed | result.not_computed.keys()
        if not (unsure or flight.spoiled or self._doomed or result.lost_block_ids):
            return
        plan, turns = flight.plan, scheduler.turns
        spoiled, wrong = flight.spoiled, set(result.lost_block_ids)
        for row in plan.scheduled:
            name, request = row.request_id, scheduler.requests[row.request_id]
            table = flight.tables.get(name) or scheduler.kv.block_ids(request)
            written = _written(row, table, scheduler.kv.block_size)
            is_lost = result.not_computed.get(name) is NotComputed.LOST or not spoiled.isdisjoint(
                table
            )
            goes_on = turns.num_plans(name) > 1
            if (is_lost or name in unsure) and goes_on and name not in self._doomed:
                is_error = name in failed and not is_lost
                self._doomed[name] = result.results[name].error if is_error else None
                turns.wait(name)
            if name in self._doomed:
                for block_id in written:
                    scheduler.kv.pool.forget(block_id)
                is_lost = True
            if is_lost or name in unsure:
                wrong.update(written)
            if is_lost:
                request.was_lost = True
                spoiled.update(written)  # for those after it in the plan
                self._lose(plan, name, result, self._doomed.get(name), goes_on)
                if not goes_on:
                    self._doomed.pop(name, None)
        for later in self._flights:
            later.spoiled |= wrong

    def _lose(
        self,
        plan: SchedulerOutput,
        name: str,
        result: StepOutput,
        error: RequestFailure | None,
        goes_on: bool,
    ) -> None:
        """Take a request from a result that does not count, with those that were to split off.

        Args:
            plan: The plan of the result.
            name: The request's id.
            result: The plan's result; afterwards without the request, or with its end alone.
            error: The failure that ends the request; None if it is computed anew.
            goes_on: Whether the request is in later plans, which have to end first.
        """
        children = [fork.child_id for fork in plan.forks if fork.parent_id == name]
        result.not_computed.pop(name, None)
        for one in (name, *children):
            found = result.results.pop(one, None)
            if error is not None and not goes_on:
                result.results[one] = SequenceResult(error=error)
            elif found is not None and one != name:
                self._never_split_off.append(one)
        if error is None and not goes_on:
            result.not_computed[name] = NotComputed.LOST

    def live(self, scheduler: Scheduler, group_id: str) -> list[Request]:
        """Return the sequences of a user's request whose end has not been reported."""
        group = scheduler.group(group_id)
        return [one for one in group if (group_id, one.index) not in self._ending]

    def is_ending(self, group_id: str) -> bool:
        """Return whether sequences of a request whose end was reported are still under way."""
        return any(name == group_id for name, _ in self._ending)

    def end(self, scheduler: Scheduler, sequence: Request, reason: str) -> EngineOutput:
        """End one of :meth:`live` now, or when its plan's result is there."""
        if not _is_under_way(sequence, scheduler):
            return scheduler.end(sequence, reason)
        if sequence.request_id in scheduler.turns:
            scheduler.turns.wait(sequence.request_id)
        self._ending[sequence.group_id, sequence.index] = sequence, reason
        return EngineOutput.of(sequence, SequenceResult(), reason)

    def _end_landed(self, scheduler: Scheduler, outputs: list[EngineOutput]) -> list[EngineOutput]:
        outputs = [one for one in outputs if (one.request_id, one.index) not in self._ending]
        for key, (sequence, reason) in list(self._ending.items()):
            if not _is_under_way(sequence, scheduler):
                del self._ending[key]
                if sequence.finish_reason is None:
                    scheduler.end(sequence, reason)
        return outputs

    def fill(self, plan: SchedulerOutput) -> None:
        """Name to the runner the sequences that split off in a step whose result does not count."""
        if plan.scheduled:  # else it most likely learns nothing of the plan
            plan.finished_request_ids += self._never_split_off
            self._never_split_off = []


def _is_under_way(sequence: Request, scheduler: Scheduler) -> bool:
    """Return whether a plan with a sequence, or with its parent before the split, is under way."""
    turns, parent = scheduler.turns, scheduler.requests.get(sequence.parent_id)
    is_pending = parent is not None and sequence in parent.pending_children
    return sequence.request_id in turns or (is_pending and sequence.parent_id in turns)


def _written(row: ScheduledRequest, table: list[int], block_size: int) -> list[int]:
    """Return the blocks of a table that a row of a plan writes."""
    stop = row.num_computed_tokens + row.num_scheduled_tokens + row.num_lookahead_tokens
    return table[row.num_computed_tokens // block_size : -(-stop // block_size)]
