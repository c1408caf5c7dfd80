"""Requests whose blocks come from tiers: no other request waits, and the tokens are the same."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from quire.core.sampling_params import SamplingParams
from quire.engine.engine import Engine
from quire.engine.request import RequestStatus, sequence_seed
from quire.settings.config import EngineConfig
from tests.engine.conftest import Run, VirtualClock, model_config
from tests.engine.paged_executor import oracle
from tests.engine.tiered_executor import TieredExecutor
from tests.sizes import sized

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


def prompt_of(length: int, seed: int) -> list[int]:
    return [(seed * 7919 + i * 31 + i * i) % 997 for i in range(length)]


@pytest.fixture
def tiered(start):
    """Return a function that makes a run with tiers, in which computing takes a second a token."""

    def make(**options: Any) -> Run:
        options = {"block_size": 4, "num_blocks": 16, "max_model_len": 56} | options
        return start(executor_class=TieredExecutor, **options)

    return make


def evicted(run: Run, num_tokens: int = 40) -> list[int]:
    """Have a prompt computed, and others in its place; return it."""
    prompt = prompt_of(num_tokens, 1)
    for name, tokens in (("a", prompt), ("b", prompt_of(44, 2)), ("c", prompt_of(44, 3))):
        run.add(f"first-{name}", tokens, max_tokens=4)
        run.finish()
    return prompt


def stuck(run: Run) -> list[int]:
    """Return a prompt whose blocks a tier has and does not give."""
    prompt = evicted(run)
    run.executor.slow.patience = 10**9
    return prompt


def test_evicted_blocks_come_back_and_count_as_cached(tiered):
    run = tiered()
    prompt = evicted(run)
    num_plans = len(run.plans)
    run.add("again", prompt, max_tokens=4)
    run.finish()
    assert run.tokens["again", 0] == run.tokens["first-a", 0]
    assert sum(plan.num_scheduled_tokens for plan in run.plans[num_plans:]) == 4 + 3
    stats = run.engine.stats()
    assert stats["external_prefix_cache_hits"] == 36
    assert stats["external_prefix_cache_queries"] == 36 + 40 + 40 + 36
    assert run.outputs[-1].num_cached_tokens == 36
    assert stats['prompt_tokens_by_source{source="external_kv_transfer"}'] == 36


def test_what_takes_longer_than_computing_is_computed(tiered):
    run = tiered()
    prompt = evicted(run)
    run.executor.slow.block_seconds = 100.0
    run.add("again", prompt, max_tokens=4)
    run.finish()
    assert run.tokens["again", 0] == run.tokens["first-a", 0]
    assert run.engine.stats()["external_prefix_cache_hits"] == 0


def test_others_run_while_one_waits(tiered):
    run = tiered(num_blocks=30)
    prompt = evicted(run)
    for name in "de":
        run.add(name, prompt_of(44, ord(name)), max_tokens=4)
        run.finish()
    run.executor.slow.patience = 5
    run.add("other", [3], max_tokens=30)
    run.step()
    run.add("again", prompt, max_tokens=4)
    waited = 0
    while ("again", 0) not in run.tokens:
        run.step()
        request = run.engine.scheduler.requests.get("again")
        waited += request is not None and request.status is RequestStatus.WAITING_FOR_KV
    assert waited > 3 and len(run.tokens["other", 0]) > waited
    # Few blocks at once, while another request runs.
    loads = [len(plan.block_loads) for plan in run.plans]
    assert max(loads) <= 2 and sum(loads) >= 4
    run.finish()
    assert run.tokens["again", 0] == run.tokens["first-a", 0]


@pytest.mark.parametrize("answers", [False, True])
def test_a_tier_that_takes_too_long_is_given_up(tiered, answers):
    """It does not say what it has, or says so and gives nothing."""
    run = tiered()
    prompt = evicted(run) if answers else stuck(run)
    if answers:
        run.executor.slow.patience, run.executor.slow.is_stuck = 0, True
    run.add("again", prompt, max_tokens=4)
    run.step()
    assert run.engine.scheduler.held and run.engine.seconds_until_work() == 0
    run.clock.advance(10**6)
    for _ in range(20):
        run.step()
    assert not run.engine.has_unfinished_requests()
    assert run.tokens["again", 0] == run.tokens["first-a", 0]


def test_abort_and_deadline_of_one_that_waits(tiered):
    run = tiered()
    prompt = stuck(run)
    run.add("aborted", prompt, max_tokens=4)
    run.add("late", prompt, max_tokens=4, deadline=run.clock() + 5)
    run.step()
    run.abort("aborted")
    run.clock.advance(6)
    run.step()
    run.step()
    assert run.endings["aborted", 0] == "abort" and run.endings["late", 0] == "timeout"
    assert not run.engine.has_unfinished_requests() and run.kv.pool.num_used == 0
    assert not run.executor.slow.coming


def test_blocks_that_turn_out_lost_are_computed(tiered):
    run = tiered()
    prompt = evicted(run)
    run.executor.slow.loses = 0.2
    for number in range(12):
        run.add(f"again-{number}", prompt, max_tokens=4)
        run.add(f"other-{number}", prompt_of(44, 2 + number % 2), max_tokens=4)
        run.finish()
        assert run.tokens[f"again-{number}", 0] == run.tokens["first-a", 0]
    assert run.executor.slow.num_lost > 0


class TierMachine(RuleBasedStateMachine):
    """Requests on a small pool over tiers that are slow, lose blocks, and are forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.expected: dict[tuple[str, int], list[int]] = {}
        self.executor = TieredExecutor(18, 4)
        config = EngineConfig.from_keywords(block_size=4, max_num_seqs=6, max_model_len=60)
        clock = VirtualClock()
        engine = Engine(self.executor, config, model_config(), clock=clock)
        engine.scheduler.admission.admits = lambda *_: True  # type: ignore[method-assign]
        self.executor.on_step = lambda plan: clock.advance(0.01)
        self.run = Run(engine, self.executor, clock)

    @rule(
        prefix=st.integers(0, 2), length=st.integers(1, 44), own=st.integers(0, 3),
        n=st.sampled_from([1, 1, 2]), salted=st.booleans(),
    )  # fmt: skip
    def arrive(self, prefix: int, length: int, own: int, n: int, salted: bool) -> None:
        name = f"r{len(self.expected):04}"
        prompt = prompt_of(length, prefix)[: max(length - own, 1)] + [own] * own
        keys = ("salt",) if salted else ()
        self.run.add(name, prompt, max_tokens=10, n=n, seed=7, extra_keys=keys)
        for index in range(n):
            self.expected[name, index] = oracle(prompt, GREEDY, sequence_seed(7, index), 10)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.run.engine.has_unfinished_requests():
                self.run.step()

    @precondition(lambda self: self.run.engine.scheduler.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        live = sorted({r.group_id for r in self.run.engine.scheduler.requests.values()})
        self.run.abort(data.draw(st.sampled_from(live)))

    @rule(patience=st.integers(0, 4), loses=st.sampled_from([0.0, 0.1, 0.5]))
    def change(self, patience: int, loses: float) -> None:
        self.executor.slow.patience = patience
        self.executor.slow.loses = loses

    @rule(block_seconds=st.sampled_from([0.0, 0.01, 1000.0]))
    def cost(self, block_seconds: float) -> None:
        self.executor.slow.block_seconds = block_seconds

    @rule(seconds=st.sampled_from([0.001, 5.0]))
    def pass_time(self, seconds: float) -> None:
        self.run.clock.advance(seconds)

    @rule()
    def forget(self) -> None:
        self.run.engine.reset_prefix_cache()

    def teardown(self) -> None:
        self.run.finish()
        assert self.run.endings.keys() == self.expected.keys()
        for key, tokens in self.expected.items():
            if self.run.endings[key] == "abort":
                tokens = tokens[: len(self.run.tokens[key])]
            assert self.run.tokens[key] == tokens


TestTierMachine = TierMachine.TestCase
TestTierMachine.settings = settings(
    max_examples=sized(25, 60), stateful_step_count=40, deadline=None
)
