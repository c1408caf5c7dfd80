"""Execution by stages one after another, in virtual time: several plans are under way at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quire.core.step import SchedulerOutput, SequenceResult, StepOutput
from tests.engine.paged_executor import Handle, PagedExecutor, ProposingExecutor


class VirtualClock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class StagedExecutor(PagedExecutor):
    """As a pipeline: plans are computed in their order when they begin, and drawn when they end.

    Attributes:
        busy: By stage, when it has begun and ended which plan.
    """

    def pass_time(self, clock: VirtualClock, stages: Sequence[float]) -> None:
        """Have each stage take some seconds for a plan; the first one is the caller's own."""
        self.clock, self.stages, self.depth = clock, stages, len(stages)
        self.busy: list[list[tuple[float, float]]] = [[] for _ in stages]
        self.num_under_way = 0

    def submit(self, plan: SchedulerOutput, someone_came: Callable[[], bool]) -> Handle:
        assert self.num_under_way < self.depth, "more plans than stages"
        assert not plan.droppable_ids or self.depth == 1
        self.num_under_way += 1
        self.plans.append(plan)
        self._take_news(plan)
        computed = self._write(plan)
        end = self.clock.now
        for seconds, busy in zip(self.stages, self.busy, strict=True):
            begin = max(end, busy[-1][1] if busy else 0.0)
            end = begin + seconds
            busy.append((begin, end))
        self.clock.now = self.busy[0][-1][1]

        def result() -> StepOutput:
            self.num_under_way -= 1
            self.clock.now = max(self.clock.now, end)
            found = self._draw(plan, computed)
            if self.fail is not None:
                for request_id, error in self.fail(plan).items():
                    found.results[request_id] = SequenceResult(error=error)
            return found

        return Handle(result)

    def idle_share(self) -> float:
        """Return the part of the time of all stages, from the first plan to the end, that is
        idle."""
        begin, end = self.busy[0][0][0], max(busy[-1][1] for busy in self.busy)
        used = sum(b - a for busy in self.busy for a, b in busy)
        return 1 - used / ((end - begin) * len(self.stages))

    def gaps(self, begin: float, end: float) -> list[float]:
        """Return how long stages were idle between plans, in a part of the time."""
        return [
            after[0] - before[1]
            for busy in self.busy
            for before, after in zip(busy, busy[1:], strict=False)
            if before[1] >= begin and after[0] <= end and after[0] > before[1]
        ]


class StagedProposing(StagedExecutor, ProposingExecutor):
    """The same with proposed tokens."""
