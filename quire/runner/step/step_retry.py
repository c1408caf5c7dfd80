"""A step that fails is computed again in parts, so that only the requests at fault end; one that is
interrupted, without the rows that may be dropped.

Halves are tried until the requests are found with which the step fails alone. Cache slots that a
failed try wrote are written again, or belong to requests that end; requests that share their blocks
compute them anew. This module knows neither models nor sampling.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from quire.core.errors import FailureKind, RankDeadError, RequestFailure
from quire.core.step import (
    NotComputed,
    ScheduledRequest,
    SchedulerOutput,
    SequenceResult,
    StepInterrupted,
    StepOutput,
)
from quire.kernels.batch.token_table import TokenTable
from quire.system.log import get_logger

log = get_logger(__name__)

#: Waits for the end of a step or a part of it, and returns its output.
StepEnd = Callable[[], StepOutput]

#: Steps in a row in which every request failed alone, from which the engine is at fault.
MAX_FAILURES = 5


class StepRetry:
    """Plans that are computed whole where that works, else in parts.

    Args:
        table: Block tables of the requests.
        block_size: Tokens per block.
        begin: Call that begins to compute a plan's ``scheduled`` and ``forks``. Errors of these
            requests are raised by the call that it returns, which waits for the end. After such an
            error the requests' state is restored, but for the slots that were to be written.
    """

    def __init__(
        self,
        table: TokenTable,
        block_size: int,
        begin: Callable[[SchedulerOutput], StepEnd],
    ) -> None:
        self._table = table
        self._block_size = block_size
        self._begin = begin
        self._num_failures = 0
        self._under_way: deque[SchedulerOutput] = deque()

    def begin(
        self,
        plan: SchedulerOutput,
        broken: Mapping[str, BaseException],
        lost_blocks: Sequence[int],
    ) -> StepEnd:
        """Begin a plan; requests that cannot be computed get an error as their result.

        Args:
            plan: A plan with at least one request.
            broken: Reasons why requests could not be prepared when they were new, by request id.
            lost_blocks: Blocks whose content is lost.

        Returns:
            A call that waits for the end of the plan. Other plans may begin before it; calls are
            made in the order of plans.

        Raises, when that is called:
            Exception: The engine is at fault and not its requests: all of several requests fail
                alone and no other one is running, or :data:`MAX_FAILURES` steps in a row had none
                that did not fail. While others run, a step may be made of one client's bad prompts.
        """
        output = StepOutput(lost_block_ids=list(lost_blocks))
        bad = set(lost_blocks)
        if broken:
            for new in plan.new_requests:
                if new.request_id in broken:
                    # Blocks that it was to compute; earlier ones have content that others computed.
                    bad.update(new.block_ids[new.num_computed_tokens // self._block_size :])
            for row in plan.scheduled:
                if row.request_id in broken:
                    bad.update(row.new_block_ids)
                    _fail(plan, output, row.request_id, broken[row.request_id])
        rows = [row for row in plan.scheduled if row.request_id not in broken]
        rows = self._readable(rows, bad, output)
        self._under_way.append(plan)
        whole = self._begin(_part(plan, rows)) if rows else None
        return partial(self._end, plan, broken, output, bad, (rows, whole))

    def _end(
        self,
        plan: SchedulerOutput,
        broken: Collection[str],
        output: StepOutput,
        bad: set[int],
        whole: tuple[list[ScheduledRequest], StepEnd | None],
    ) -> StepOutput:
        self._under_way.popleft()
        failures: list[BaseException] = []
        parts = [whole]
        while parts:
            rows, end = parts.pop()
            if end is None:
                rows = self._readable(self._last(rows, bad, output), bad, output)
            if not rows:
                continue
            try:
                output.add((end or self._begin(_part(plan, rows)))())
                self._num_failures = 0
                if end is None:
                    output.not_computed |= {row.request_id: NotComputed.LATE for row in rows}
            except StepInterrupted:
                parts.append((self._drop(plan, rows, bad, output), None))
            except (KeyboardInterrupt, SystemExit, RankDeadError):
                raise  # no part of the step can be computed without that rank
            except BaseException as error:  # Rust libraries raise panics as such
                if not failures:
                    log.exception("[runner] a step failed; requests in it: %d", len(plan.scheduled))
                failures.append(error)
                if len(rows) > 1:  # the first half first: later rows read what earlier ones write
                    half = len(rows) // 2
                    parts += [(rows[half:], None), (rows[:half], None)]
                    continue
                _fail(plan, output, rows[0].request_id, error)
                bad.update(self._written(rows[0]))
        if failures:
            self._check(plan, broken, output, failures[0])
        return output

    def _drop(
        self,
        plan: SchedulerOutput,
        rows: Sequence[ScheduledRequest],
        bad: set[int],
        output: StepOutput,
    ) -> list[ScheduledRequest]:
        """Drop the rows that may be dropped, with the blocks they would write; return the rest."""
        for row in rows:
            if row.request_id in plan.abortable_ids:
                if self._readable([row], bad, output):
                    output.not_computed[row.request_id] = NotComputed.DROPPED
                bad.update(self._written(row))
        return [row for row in rows if row.request_id not in plan.abortable_ids]

    def _check(
        self,
        plan: SchedulerOutput,
        broken: Collection[str],
        output: StepOutput,
        error: BaseException,
    ) -> None:
        """Raise an error that is not the requests' fault."""
        planned = [row.request_id for row in plan.scheduled if row.request_id not in broken]
        # Broken and lost requests were not tried: they do not show whether the engine is at fault.
        lost = output.ids(NotComputed.LOST)
        tried = [request_id for request_id in planned if request_id not in lost]
        found = [output.results.get(request_id) for request_id in tried]
        if all(result is not None and result.error is not None for result in found):
            self._num_failures += 1
            others = self._table.rows.keys() - set(tried) - set(broken)
            alone = len(tried) > 1 and not others
            if alone or self._num_failures >= MAX_FAILURES:
                raise error

    def _readable(
        self, rows: Sequence[ScheduledRequest], bad: set[int], output: StepOutput
    ) -> list[ScheduledRequest]:
        """Return the rows that read no bad block; others are lost, with blocks they would write."""
        if not bad:
            return list(rows)
        readable = []
        for row in rows:
            num_read = -(-row.num_computed_tokens // self._block_size)
            blocks = self._table.block_ids[self._table.rows[row.request_id], :num_read]
            if bad.isdisjoint(blocks.tolist()):
                readable.append(row)
            else:
                output.not_computed[row.request_id] = NotComputed.LOST
                bad.update(self._written(row))
        return readable

    def _last(
        self, rows: Sequence[ScheduledRequest], bad: set[int], output: StepOutput
    ) -> list[ScheduledRequest]:
        """Return the rows whose requests are in no later plan: others' tables are of that plan."""
        later = {row.request_id for plan in self._under_way for row in plan.scheduled}
        for row in rows:
            if row.request_id in later:
                output.not_computed[row.request_id] = NotComputed.LOST
                bad.update(self._written(row))
        return [row for row in rows if row.request_id not in later]

    def _written(self, row: ScheduledRequest) -> list[int]:
        start = row.num_computed_tokens // self._block_size
        stop = -(-(row.num_computed_tokens + row.num_scheduled_tokens) // self._block_size)
        blocks: list[int] = self._table.block_ids[
            self._table.rows[row.request_id], start:stop
        ].tolist()
        return [block_id for block_id in blocks if block_id]  # some may be freed already


def _part(plan: SchedulerOutput, rows: list[ScheduledRequest]) -> SchedulerOutput:
    ids = {row.request_id for row in rows}
    forks = [fork for fork in plan.forks if fork.parent_id in ids]
    abortable = plan.abortable_ids & ids
    return SchedulerOutput(
        scheduled=rows, forks=forks, abortable_ids=abortable, keeps_states=plan.keeps_states
    )


def _fail(plan: SchedulerOutput, output: StepOutput, request_id: str, error: BaseException) -> None:
    """End a request, and the sequences that were to split off from it."""
    if isinstance(error, MemoryError):
        kind = FailureKind.OUT_OF_MEMORY
        message = "[memory] there was not enough for this request. Try again later."
    else:
        kind = FailureKind.ENGINE
        message = f"[engine] this request's step failed: {type(error).__name__}: {error}."
    log.error("%s Request %s.", message, request_id)
    children = [fork.child_id for fork in plan.forks if fork.parent_id == request_id]
    for name in (request_id, *children):
        output.results[name] = SequenceResult(error=RequestFailure(kind, message))
