"""Which requests end when a step fails, and when it is the engine; nothing is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from quire.core.engine_request import EngineRequest
from quire.core.sampling_params import SamplingParams
from quire.core.step import (
    NewRequest,
    NotComputed,
    ScheduledRequest,
    SchedulerOutput,
    SequenceResult,
    StepInterrupted,
    StepOutput,
)
from quire.kernels.batch.token_table import TokenTable
from quire.runner.step.step_retry import MAX_FAILURES, StepEnd, StepRetry

BLOCK_SIZE = 4
BROKEN = MemoryError()


class Requests:
    """Requests in a table; a step with one of ``bad`` fails.

    Attributes:
        bad: Names of requests that cannot be computed.
    """

    def __init__(self, bad: str = "") -> None:
        self.bad = bad
        self.table = TokenTable(8, 8)
        self.news: dict[str, NewRequest] = {}
        self.on_compute: Callable[[SchedulerOutput], StepOutput] = self.compute
        self.parts = StepRetry(self.table, BLOCK_SIZE, lambda plan: lambda: self.on_compute(plan))

    def compute(self, plan: SchedulerOutput) -> StepOutput:
        names = [row.request_id for row in plan.scheduled]
        if any(name in self.bad for name in names):
            raise RuntimeError("injected fault")
        return StepOutput({name: SequenceResult([1]) for name in names})

    def add(self, name: str, block_ids: list[int], num_cached_tokens: int = 0) -> None:
        tokens = list(range(len(block_ids) * BLOCK_SIZE))
        self.table.append_blocks(self.table.add(name, tokens, len(tokens)), block_ids)
        params = SamplingParams()
        source = EngineRequest(name, tokens, params)
        self.news[name] = NewRequest(
            name, tokens, len(tokens), params, 0, block_ids, num_cached_tokens, source
        )

    def end(self, name: str) -> None:
        self.table.remove(name)

    def run(
        self,
        names: Sequence[str],
        broken: str = "",
        droppable: frozenset[str] = frozenset(),
    ) -> StepOutput:
        """Compute a step of requests, those in ``broken`` could not be prepared."""
        new = [self.news[name] for name in names]
        rows = [
            ScheduledRequest(
                one.request_id,
                one.num_computed_tokens,
                len(one.token_ids) - one.num_computed_tokens,
                [],
                True,
            )
            for one in new
        ]
        plan = SchedulerOutput(new_requests=new, scheduled=rows, abortable_ids=droppable)
        return self.parts.begin(plan, dict.fromkeys(broken, BROKEN), [])()

    def begin(self, *parts: tuple[str, int, int]) -> StepEnd:
        """Begin a step of parts of requests: a name, the first token and how many."""
        rows = [ScheduledRequest(name, start, count, [], False) for name, start, count in parts]
        return self.parts.begin(SchedulerOutput(scheduled=rows), {}, [])


def errors(output: StepOutput) -> str:
    """Return the names of the requests that end."""
    return "".join(sorted(name for name, found in output.results.items() if found.error))


def test_who_shares_the_prefix_of_a_broken_request_goes_on() -> None:
    """Its prefix was computed long ago; all of its blocks used to count as bad."""
    requests = Requests()
    requests.add("a", [1, 2, 3], num_cached_tokens=8)
    requests.add("b", [1, 2, 4], num_cached_tokens=8)
    requests.add("c", [1, 2, 3, 5], num_cached_tokens=12)  # and what it was about to compute
    output = requests.run("abc", broken="a")
    assert errors(output) == "a"
    assert output.not_computed == {"c": NotComputed.LOST}
    assert output.results["b"].token_ids == [1]


def test_a_broken_request_says_nothing_about_the_engine() -> None:
    """With one that fails alone it used to look as if all requests failed."""
    requests = Requests(bad="b")
    requests.add("a", [1])
    requests.add("b", [2])
    assert errors(requests.run("ab", broken="a")) == "ab"
    assert errors(requests.run("ab", broken="ab")) == "ab"


def test_a_step_of_bad_prompts_does_not_end_those_outside_it() -> None:
    requests = Requests(bad="ab")
    for name, block_id in zip("abc", (1, 2, 3), strict=True):
        requests.add(name, [block_id])
    for _ in range(MAX_FAILURES - 1):
        assert errors(requests.run("ab")) == "ab"
    assert errors(requests.run("c")) == ""
    for _ in range(MAX_FAILURES - 1):
        assert errors(requests.run("ab")) == "ab"
    with pytest.raises(RuntimeError, match="injected"):
        requests.run("ab")


def test_when_all_that_run_fail_it_is_the_engine() -> None:
    requests = Requests(bad="ab")
    requests.add("a", [1])
    requests.add("b", [2])
    with pytest.raises(RuntimeError, match="injected"):
        requests.run("ab")


def test_several_in_a_row_that_fail_alone_are_the_engine() -> None:
    requests = Requests(bad="abcdef")
    for number, name in enumerate("abcdef"[:MAX_FAILURES], start=1):
        requests.add(name, [number])
        if number == MAX_FAILURES:
            with pytest.raises(RuntimeError, match="injected"):
                requests.run(name)
        else:
            assert errors(requests.run(name)) == name
            requests.end(name)


def test_a_part_is_dropped_and_the_rest_is_computed() -> None:
    """Who reads what it was to write is lost; who does not goes on, and so does the part later."""
    requests = Requests()
    requests.add("part", [1, 2, 3], num_cached_tokens=4)
    requests.add("decode", [1, 4], num_cached_tokens=4)
    requests.add("reader", [1, 2, 3, 5], num_cached_tokens=12)
    requests.add("fresh", [6])
    computed: list[list[str]] = []
    healthy = requests.compute

    def compute(plan: SchedulerOutput) -> StepOutput:
        if plan.abortable_ids:
            raise StepInterrupted
        computed.append([row.request_id for row in plan.scheduled])
        return healthy(plan)

    requests.on_compute = compute
    output = requests.run(["part", "decode", "reader", "fresh"], droppable=frozenset({"part"}))
    assert output.ids(NotComputed.DROPPED) == {"part"}
    assert output.ids(NotComputed.LOST) == {"reader"}
    assert computed == [["decode", "fresh"]] and output.results.keys() == {"decode", "fresh"}


def test_a_part_that_reads_another_dropped_part_is_lost() -> None:
    requests = Requests()
    requests.add("one", [1, 2])
    requests.add("two", [1, 2, 3], num_cached_tokens=8)  # found what "one" was to compute

    def compute(plan: SchedulerOutput) -> StepOutput:
        raise StepInterrupted

    requests.on_compute = compute
    output = requests.run(["one", "two"], droppable=frozenset({"one", "two"}))
    assert output.not_computed == {"one": NotComputed.DROPPED, "two": NotComputed.LOST}
    assert output.results == {}


def test_what_is_computed_after_a_failure_is_late() -> None:
    requests = Requests(bad="b")
    for name, block_id in zip("abc", (1, 2, 3), strict=True):
        requests.add(name, [block_id])
    first = requests.begin(("a", 0, 4), ("b", 0, 4))
    requests.bad = ""
    second = requests.begin(("c", 0, 4))
    requests.bad = "b"
    output = first()
    assert errors(output) == "b"
    assert output.not_computed == {"a": NotComputed.LATE}
    assert second().not_computed == {}


def test_who_has_gone_on_is_not_computed_late() -> None:
    """Its table is that of the later part: of blocks that a window left the ids are gone."""
    requests = Requests(bad="b")
    requests.add("a", [1, 2])
    requests.add("b", [3])
    requests.add("c", [1, 4])  # reads what "a" writes
    ends = [requests.begin(("a", 0, 4), ("b", 0, 4), ("c", 4, 4)), requests.begin(("a", 4, 4))]
    output = ends[0]()
    assert errors(output) == "b"
    assert output.not_computed == dict.fromkeys("ac", NotComputed.LOST)
    assert errors(ends[1]()) == ""
