"""Several plans under way at once: what happens to their requests, and that tokens are the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire.core.errors import EngineDeadError
from quire.core.sampling_params import SamplingParams
from quire.engine.request import sequence_seed
from tests.engine.conftest import Run
from tests.engine.paged_executor import fold, oracle
from tests.engine.staged_executor import StagedExecutor, StagedProposing, StagedWindow
from tests.sizes import sized


@pytest.fixture
def staged(start):
    """Return a maker of runs whose executor has that many stages of a second."""

    def make(num_stages: int, **options: Any) -> Run:
        options.setdefault("executor_class", StagedExecutor)
        return start(stages=[1.0] * num_stages, **options)

    return make


def under_way(run: Run) -> list[set[str]]:
    return [{row.request_id for row in plan.scheduled} for plan in run.plans]


def expected(prompt: list[int], count: int, **params: Any) -> list[int]:
    made = SamplingParams(**({"temperature": 0.0, "ignore_eos": True} | params))
    return oracle(prompt, made, made.seed or 0, count)


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
@pytest.mark.parametrize("executor", [StagedExecutor, StagedProposing])
def test_tokens_do_not_depend_on_the_number_of_plans(staged, num_stages, executor):
    """Shared prefixes, several sequences, preemption, chunks and proposed tokens."""
    most = 3 if executor is StagedProposing else None
    run = staged(
        num_stages,
        executor_class=executor,
        num_blocks=40,
        block_size=4,
        max_num_batched_tokens=24,
        looks_ahead=False,
        most_proposed=most,
    )
    prompts = {f"r{n}": [7] * 9 + [n] * (5 * n) for n in range(7)}
    for number, (name, prompt) in enumerate(prompts.items()):
        run.add(name, prompt, max_tokens=15, seed=number, temperature=number % 2, n=1 + number % 3)
    run.finish()
    assert run.engine.scheduler.stats.num_preemptions > 0
    for number, (name, prompt) in enumerate(prompts.items()):
        for index in range(1 + number % 3):
            seed = sequence_seed(number, index)
            want = expected(prompt, 15, seed=seed, temperature=number % 2)
            assert run.tokens[name, index] == want, name


def test_a_request_is_in_one_plan_at_a_time(staged):
    run = staged(3)
    for name in "abc":
        run.add(name, [ord(name)] * 5, max_tokens=6)
    run.step()
    run.finish()
    plans = under_way(run)
    for first, second in zip(plans[1:], plans[2:], strict=False):
        assert first.isdisjoint(second)


def test_an_abort_is_told_at_once_and_blocks_are_free_after_the_step(staged):
    run = staged(2)
    run.add("a", [1] * 5, max_tokens=9)
    run.add("b", [2] * 5, max_tokens=9)
    run.step()  # the first plan has both
    run.step()
    run.abort("a")
    run.abort("a")
    assert run.endings == {("a", 0): "abort"}
    run.finish()
    assert run.endings == {("a", 0): "abort", ("b", 0): "length"}
    assert run.tokens["b", 0] == expected([2] * 5, 9)


def test_the_id_of_an_aborted_request_can_be_used_again(staged):
    run = staged(3)
    for name in "abc":
        run.add(name, [ord(name)] * 5, max_tokens=9)
    run.step()
    run.step()
    aborted = [name for name in "abc" if name in run.engine.scheduler.pipeline]
    for name in aborted:
        run.abort(name)
        del run.endings[name, 0]
        run.tokens[name, 0] = []
        run.add(name, [ord(name)] * 4, max_tokens=5)
    run.finish()
    assert aborted
    for name in "abc":
        want = ([ord(name)] * 4, 5) if name in aborted else ([ord(name)] * 5, 9)
        assert run.tokens[name, 0] == expected(*want)


def test_a_stopped_sequence_yields_nothing_more(staged):
    run = staged(2)
    run.add("a", [1] * 5, max_tokens=9, n=2)
    run.step()
    run.step()
    run.engine.stop_sequence("a", 1)
    before = list(run.tokens["a", 1])
    run.finish()
    assert run.tokens["a", 1] == before
    assert run.endings == {("a", 0): "length"}


def test_deadlines_end_requests_under_way(staged):
    run = staged(2)
    run.add("a", [1] * 5, max_tokens=50, deadline=10.0)
    run.add("b", [2] * 5, max_tokens=20)
    run.finish()
    assert run.endings == {("a", 0): "timeout", ("b", 0): "length"}


def test_readers_of_blocks_that_turn_out_wrong_are_computed_anew(staged):
    """One request fails when its step ends; another one, under way, shares what it has computed."""
    run = staged(2, block_size=4, max_num_batched_tokens=16)
    run.executor.fail = lambda plan: {
        row.request_id: "broken" for row in plan.scheduled if row.request_id == "bad"
    }
    prefix = [3] * 12
    run.add("bad", [*prefix, 1, 1, 1, 1], max_tokens=4)
    run.add("good", [*prefix, 2, 2], max_tokens=4, n=2)
    run.finish()
    assert run.plans[1].scheduled[0].num_computed_tokens == 12  # it was found under way
    assert run.endings == {("bad", 0): "error", ("good", 0): "length", ("good", 1): "length"}
    assert run.tokens["good", 0] == expected([*prefix, 2, 2], 4)
    news = [new.request_id for plan in run.plans for new in plan.new_requests]
    assert news == ["bad", "good", "good"]


def test_parts_of_a_prompt_are_under_way_together(staged):
    """The last one draws: only after it the request waits."""
    run = staged(3, max_num_batched_tokens=8, block_size=4)
    run.add("long", list(range(24)), max_tokens=2)
    run.step()
    assert [plan.scheduled[0].num_computed_tokens for plan in run.plans] == [0, 8, 16]
    assert run.tokens == {}
    run.finish()
    assert run.tokens["long", 0] == expected(list(range(24)), 2)
    assert len(run.plans) == 4


def test_an_abort_with_parts_under_way_frees_blocks_after_the_last_of_them(staged):
    run = staged(3, max_num_batched_tokens=8, block_size=4)
    run.add("long", list(range(80)), max_tokens=2)
    run.step()  # two more are under way
    num_used = run.kv.pool.num_used
    run.abort("long")
    assert run.endings == {("long", 0): "abort"}
    run.step()
    assert run.kv.pool.num_used == num_used
    run.step()
    assert run.kv.pool.num_used == 0
    assert len(run.plans) == 3


def test_what_draws_or_is_asked_of_each_part_is_in_one_plan_at_a_time(staged):
    run = staged(3, max_num_batched_tokens=8)
    run.add("probable", list(range(24)), max_tokens=1, prompt_logprobs=0)
    run.finish()
    assert run.clock.now == 3 * 3
    assert len(run.outputs) == 3


def test_a_request_is_not_preempted_while_parts_of_it_are_under_way(staged):
    run = staged(2, num_blocks=20, block_size=4, max_num_batched_tokens=8, looks_ahead=False)
    for number in range(6):
        run.add(f"old{number}", [number] * 3, max_tokens=5)
    run.add("young", [7] * 50, max_tokens=10)
    run.finish()
    assert run.engine.scheduler.stats.num_preemptions > 0
    for number in range(6):
        assert run.tokens[f"old{number}", 0] == expected([number] * 3, 5)
    assert run.tokens["young", 0] == expected([7] * 50, 10)


def test_a_part_that_fails_ends_its_request_once_and_its_readers_are_computed_anew(staged):
    run = staged(3, max_num_batched_tokens=16, block_size=4)
    run.executor.failing = lambda plan: 0 if len(run.plans) == 1 else None
    prompt = list(range(64))
    run.add("bad", prompt, max_tokens=4)
    run.step()
    assert run.endings == {}  # two more parts are under way
    run.add("good", [*prompt, 7], max_tokens=4)
    run.finish()
    assert run.endings == {("bad", 0): "error", ("good", 0): "length"}
    assert run.tokens["good", 0] == expected([*prompt, 7], 4)


def test_a_request_that_lost_parts_is_then_in_one_plan_at_a_time(staged):
    """Else one whose plans fail when they begin would never come to its end."""
    run = staged(3, max_num_batched_tokens=8)
    run.executor.is_late = lambda plan: True
    run.add("long", list(range(40)), max_tokens=2)
    run.finish()
    assert run.tokens["long", 0] == expected(list(range(40)), 2)
    starts = [plan.scheduled[0].num_computed_tokens for plan in run.plans]
    assert starts == [0, 8, 16, 0, 8, 16, 24, 32, 40]


def test_a_canary_has_one_plan_at_a_time(staged):
    """What a step fills is sealed at its end: no other one may find it before."""
    run = staged(3, kv_canary="raise")
    for name in "abc":
        run.add(name, [7] * 20, max_tokens=4)
    run.finish()
    assert run.clock.now == 3 * len(run.plans)


def test_a_failed_step_ends_all_requests(staged):
    run = staged(3)
    for name in "abcd":
        run.add(name, [ord(name)] * 5, max_tokens=9)
    run.step()

    def fail(plan: Any) -> dict[str, str]:
        raise RuntimeError("no power")

    run.executor.fail = fail
    with pytest.raises(EngineDeadError, match="no power"):
        run.step()
    assert not run.engine.has_unfinished_requests()
    assert run.kv.pool.num_used == 0


class Machine(RuleBasedStateMachine):
    """Random arrivals, aborts, stops and failures, on an engine with few blocks."""

    make: Any
    num_stages = 2
    executor: type[StagedExecutor] = StagedExecutor

    def __init__(self) -> None:
        super().__init__()
        most = 2 if self.executor is StagedProposing else None
        self.run: Run = self.make(
            stages=[1.0] * self.num_stages,
            executor_class=self.executor,
            num_blocks=24,
            block_size=4,
            max_num_batched_tokens=12,
            max_num_seqs=6,
            looks_ahead=False,
            most_proposed=most,
        )
        self.asked: dict[str, tuple[list[int], int, int, int]] = {}
        self.num_late = 0
        self.failing: int | None = None
        self.run.executor.is_late = self.takes_late
        self.run.executor.failing = self.takes_failing

    def takes_late(self, plan: Any) -> bool:
        is_late = self.num_late > 0
        self.num_late -= is_late
        return is_late

    def takes_failing(self, plan: Any) -> int | None:
        failing, self.failing = self.failing, None
        return failing

    @rule(index=st.integers(0, 3))
    def fail(self, index: int) -> None:
        self.failing = index

    @rule(count=st.integers(1, 8))
    def be_late(self, count: int) -> None:
        self.num_late = count

    @rule(
        shared=st.integers(0, 30),
        own=st.integers(1, 30),
        max_tokens=st.integers(1, 12),
        n=st.integers(1, 3),
        deadline=st.none() | st.integers(1, 20),
    )
    def add(self, shared: int, own: int, max_tokens: int, n: int, deadline: int | None) -> None:
        number = len(self.asked)
        prompt = [5] * shared + [number] * own
        due = None if deadline is None else self.run.clock.now + deadline
        name = f"r{number}"
        self.run.add(name, prompt, max_tokens=max_tokens, n=n, seed=number, deadline=due)
        self.asked[name] = prompt, max_tokens, n, number

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.asked)))
        self.run.abort(name)
        live = self.run.engine.abort_request(name)
        assert live == []

    @precondition(lambda self: self.run.tokens)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        name, index = data.draw(st.sampled_from(sorted(self.run.tokens)))
        if (name, index) not in self.run.endings:
            self.run.engine.stop_sequence(name, index)
            self.run.endings[name, index] = "stop"

    @rule(count=st.integers(1, 5))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.run.engine.has_unfinished_requests():
                self.run.step()

    @invariant()
    def blocks_agree(self) -> None:
        self.run.kv.check_integrity()

    def teardown(self) -> None:
        run = self.run
        run.finish()
        assert sorted(run.endings) == sorted(
            (name, index) for name, (_, _, n, _) in self.asked.items() for index in range(n)
        )
        for (name, index), reason in run.endings.items():
            prompt, max_tokens, _, number = self.asked[name]
            params = SamplingParams(temperature=0.0, ignore_eos=True)
            seed = sequence_seed(number, index)
            mix = None if self.executor.mix is fold else self.executor.mix
            want = oracle(prompt, params, seed, max_tokens, mix=mix)
            got = run.tokens.get((name, index), [])
            assert got == want[: len(got)], name
            assert reason != "length" or len(got) == max_tokens
        told = {*run.engine.scheduler.sequences.ended_ids, *run.engine._pipeline._unforked_ids}
        assert set(run.executor.held) <= told  # by the next plan


@pytest.mark.parametrize("executor", [StagedExecutor, StagedProposing, StagedWindow])
@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
def test_random_arrivals_and_endings(start, num_stages, executor):
    class Staged(Machine):
        pass

    Staged.make, Staged.num_stages, Staged.executor = staticmethod(start), num_stages, executor
    Staged.TestCase.settings = settings(
        max_examples=sized(7, 40),  # of each of twelve
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    Staged.TestCase().runTest()
