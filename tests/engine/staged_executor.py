"""Execution by stages one after another, in virtual time: several plans are under way at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from quire.core.errors import FailureKind, RequestFailure
from quire.core.step import NotComputed, SchedulerOutput, SequenceResult, StepOutput
from tests.engine.paged_executor import Handle, PagedExecutor, ProposingExecutor, WindowExecutor


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

    def submit(self, plan: SchedulerOutput, request_arrived: Callable[[], bool]) -> Handle:
        assert self.num_under_way < self.depth, "more plans than stages"
        assert not plan.abortable_ids or self.depth == 1
        self.num_under_way += 1
        self.plans.append(plan)
        number = len(self.plans)
        self._take_news(plan)
        failing, is_late = self.failing(plan), self.is_late(plan)
        begun = self._spared(plan, failing, set())
        computed = self._write(replace(begun, scheduled=[] if is_late else begun.scheduled))
        end = self.clock.now
        for seconds, busy in zip(self.stages, self.busy, strict=True):
            begin = max(end, busy[-1][1] if busy else 0.0)
            end = begin + seconds
            busy.append((begin, end))
        self.clock.now = self.busy[0][-1][1]

        def result() -> StepOutput:
            self.num_under_way -= 1
            self.clock.now = max(self.clock.now, end)
            done, rows = begun, computed
            if is_late:
                later = [row for plan in self.plans[number:] for row in plan.scheduled]
                done = self._spared(plan, failing, {row.request_id for row in later})
                rows = self._write(replace(done, block_copies=[]))
            found = self._draw(done, rows)
            names = {row.request_id for row in done.scheduled}
            for row in plan.scheduled:
                if row.request_id not in names:
                    found.not_computed[row.request_id] = NotComputed.LOST
                elif is_late:
                    found.not_computed[row.request_id] = NotComputed.LATE
            if failing is not None and failing < len(plan.scheduled):
                self._fail(plan, plan.scheduled[failing].request_id, found)
            if self.fail is not None:
                for request_id, error in self.fail(plan).items():
                    found.results[request_id] = SequenceResult(
                        error=RequestFailure(FailureKind.ENGINE, error)
                    )
            return found

        return Handle(result)

    def _spared(
        self, plan: SchedulerOutput, failing: int | None, later: set[str]
    ) -> SchedulerOutput:
        """Return a plan without what fails, is in later plans, or reads what these would write."""
        rows, bad, size = [], set[int](), self.kv_cache_spec.block_size
        for index, row in enumerate(plan.scheduled):
            start, table = row.num_computed_tokens, self.held[row.request_id].block_ids
            is_read = not bad.isdisjoint(table[: -(-start // size)])
            if index == failing or row.request_id in later or is_read:
                bad.update(table[start // size : -(-(start + row.num_scheduled_tokens) // size)])
                bad.discard(0)
            else:
                rows.append(row)
        names = {row.request_id for row in rows}
        forks = [fork for fork in plan.forks if fork.parent_id in names]
        return replace(plan, scheduled=rows, forks=forks)

    def _fail(self, plan: SchedulerOutput, name: str, found: StepOutput) -> None:
        found.not_computed.pop(name, None)
        children = [fork.child_id for fork in plan.forks if fork.parent_id == name]
        for one in (name, *children):
            self.held.setdefault(one, self.held[name])
            found.results[one] = SequenceResult(error=RequestFailure(FailureKind.ENGINE, "broken"))

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


class StagedWindow(StagedExecutor, WindowExecutor):
    """The same with a window."""


class StagedProposing(StagedExecutor, ProposingExecutor):
    """The same with proposed tokens."""
