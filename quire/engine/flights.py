"""Plans under way, whose results come in their order, and what their requests wait for.

Stages compute plans in the order in which they were made. So a plan may read and write over what
those before it write to the cache, before their results are there: whether they have one at all is
the only thing that is not known. Where a result says that blocks have no content, the requests of
later plans that read them have to be computed anew.

A request that ends by what comes from outside, such as an abort, is told so at once, and has its
blocks until the result of its plan is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.core.step import SchedulerOutput, SequenceResult, StepOutput
from quire.engine.engine_output import EngineOutput
from quire.engine.executor import StepHandle
from quire.engine.request import Request
from quire.engine.scheduler import Scheduler


@dataclass(slots=True)
class Flight:
    """A plan under way.

    Attributes:
        plan: What is computed.
        handle: Of its result.
        spoiled: Blocks that were found to have no content since it was made.
    """

    plan: SchedulerOutput
    handle: StepHandle
    spoiled: set[int] = field(default_factory=set)


class Flights:
    """All plans under way; observes the pool of blocks.

    Args:
        depth: How many at once, at most.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._flights: deque[Flight] = deque()
        self._ending: dict[tuple[str, int], tuple[Request, str]] = {}
        self._never_split_off: list[str] = []

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def are_all_under_way(self) -> bool:
        """Whether there can be no further one."""
        return len(self._flights) >= self.depth

    def add(self, plan: SchedulerOutput, handle: StepHandle) -> None:
        """A plan has begun."""
        self._flights.append(Flight(plan, handle))

    def clear(self) -> None:
        """Forget all plans and requests."""
        self._flights.clear()
        self._ending.clear()

    def pop(self) -> Flight:
        """Return the oldest one, whose result comes next."""
        return self._flights.popleft()

    def apply(self, flight: Flight, result: StepOutput, scheduler: Scheduler) -> list[EngineOutput]:
        """Apply what a plan brought; return what its sequences have of it."""
        if flight.spoiled:
            self._lose_readers(flight, result, scheduler)
        outputs = scheduler.update_from_output(flight.plan, result)
        return self._end_landed(scheduler, outputs) if self._ending else outputs

    def _lose_readers(self, flight: Flight, result: StepOutput, scheduler: Scheduler) -> None:
        """Take from a result what was computed of blocks without content."""
        for row in flight.plan.scheduled:
            request = scheduler.requests[row.request_id]
            if not flight.spoiled.isdisjoint(scheduler.kv.block_ids(request)):
                result.lost_ids.add(row.request_id)
                result.results.pop(row.request_id, None)
        for fork in flight.plan.forks:
            if fork.parent_id in result.lost_ids and fork.child_id in result.results:
                del result.results[fork.child_id]
                self._never_split_off.append(fork.child_id)

    def live(self, scheduler: Scheduler, group_id: str) -> list[Request]:
        """Return the sequences of a user's request that have not been told that they end."""
        group = scheduler.group(group_id)
        return [one for one in group if (group_id, one.index) not in self._ending]

    def is_ending(self, group_id: str) -> bool:
        """Whether sequences of a request were told so, and are under way."""
        return any(name == group_id for name, _ in self._ending)

    def end(self, scheduler: Scheduler, sequence: Request, reason: str) -> EngineOutput:
        """End one of :meth:`live` now, or when its plan's result is there."""
        if sequence.request_id not in scheduler.turns:
            return scheduler.end(sequence, reason)
        self._ending[sequence.group_id, sequence.index] = sequence, reason
        return EngineOutput.of(sequence, SequenceResult(), reason)

    def _end_landed(self, scheduler: Scheduler, outputs: list[EngineOutput]) -> list[EngineOutput]:
        outputs = [one for one in outputs if (one.request_id, one.index) not in self._ending]
        for key, (sequence, reason) in list(self._ending.items()):
            if sequence.request_id not in scheduler.turns:
                del self._ending[key]
                if sequence.finish_reason is None:
                    scheduler.end(sequence, reason)
        return outputs

    def fill(self, plan: SchedulerOutput) -> None:
        """Have the runner forget sequences that split off in a step whose result does not count."""
        plan.finished_request_ids += self._never_split_off
        self._never_split_off = []

    def given_out(self, block_id: int, content: bytes | None) -> None:
        """Mean nothing: it is no block of a plan under way."""

    def cached(self, block_id: int, block_hash: bytes) -> None:
        """Mean nothing."""

    def hit(self, request_id: str, block_ids: Sequence[int]) -> None:
        """Mean nothing."""

    def evicted(self, block_id: int, block_hash: bytes) -> None:
        """Have the readers of a block that may be wrong computed anew; one given out has none."""
        for flight in self._flights:
            flight.spoiled.add(block_id)
