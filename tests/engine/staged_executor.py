"""Execution by stages one after another, in virtual time: several plans are under way at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

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
        is_late: Whether a plan fails when it begins, and is computed when its result is asked for.
        failing: The index of the row of a plan that is not computed and has an error; None for
            none. Rows that read what it does not write are lost.
    """

    is_late: Callable[[SchedulerOutput], bool] = staticmethod(lambda plan: False)
    failing: Callable[[SchedulerOutput], int | None] = staticmethod(lambda plan: None)

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
        errors, lost = self._without(plan, self.failing(plan))
        good = [row for row in plan.scheduled if row.request_id not in errors | lost]
        is_late = self.is_late(plan)
        computed = self._write(replace(plan, scheduled=[] if is_late else good))
        end = self.clock.now
        for seconds, busy in zip(self.stages, self.busy, strict=True):
            begin = max(end, busy[-1][1] if busy else 0.0)
            end = begin + seconds
            busy.append((begin, end))
        self.clock.now = self.busy[0][-1][1]

        def result() -> StepOutput:
            self.num_under_way -= 1
            self.clock.now = max(self.clock.now, end)
            again = self._write(SchedulerOutput(scheduled=good)) if is_late else computed
            forks = [fork for fork in plan.forks if fork.parent_id not in errors | lost]
            found = self._draw(replace(plan, forks=forks), again)
            found.late_ids = {row.request_id for row in good} if is_late else set()
            found.lost_ids = lost
            for name in errors:
                found.results[name] = SequenceResult(error="broken")
            if self.fail is not None:
                for request_id, error in self.fail(plan).items():
                    found.results[request_id] = SequenceResult(error=error)
            return found

        return Handle(result)

    def _without(self, plan: SchedulerOutput, failing: int | None) -> tuple[set[str], set[str]]:
        """Return who fails with a row, those included that were to split off, and who is lost."""
        errors: set[str] = set()
        lost: set[str] = set()
        bad: set[int] = set()
        size = self.kv_cache_spec.block_size
        for index, row in enumerate(plan.scheduled):
            name, start = row.request_id, row.num_computed_tokens
            table = self.held[name].block_ids
            if index == failing:
                errors.add(name)
            elif not bad.isdisjoint(table[: -(-start // size)]):
                lost.add(name)
            else:
                continue
            bad.update(table[start // size : -(-(start + row.num_scheduled_tokens) // size)])
        for fork in plan.forks:
            if fork.parent_id in errors:
                errors.add(fork.child_id)
                self.held[fork.child_id] = replace(self.held[fork.parent_id])
        return errors, lost

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
