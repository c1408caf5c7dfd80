"""How busy the stages of a pipeline are, in virtual time, with the engine's own plans."""

from __future__ import annotations

import random

import pytest

from quire.core.sampling_params import SamplingParams
from tests.engine.staged_executor import StagedExecutor
from tests.sizes import sized


@pytest.mark.parametrize("num_plans", [1, 4, 5, 8, 27])
@pytest.mark.parametrize("num_stages", [2, 4])
def test_the_bubble_of_a_run_from_its_beginning_to_its_end(start, num_stages, num_plans):
    """(p - 1) / (m + p - 1) of p stages and m plans: 37.5% for 4 and 5, 10% for 4 and 27."""
    run = start(executor_class=StagedExecutor, stages=[1.0] * num_stages, max_num_batched_tokens=16)
    for number in range(num_plans):  # each fills a plan of its own
        run.add(f"r{number}", [number] * 16, max_tokens=1)
    run.finish()
    assert len(run.plans) == num_plans
    assert run.clock.now == num_plans + num_stages - 1
    expected = (num_stages - 1) / (num_plans + num_stages - 1)
    assert run.executor.idle_share() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("num_chunks", [1, 2, 5, 27])
@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_the_chunks_of_one_prompt_follow_each_other(start, unpaged, num_stages, num_chunks):
    """As prompts of a plan each would: none waits for the result of those before it."""
    run = start(executor_class=StagedExecutor, stages=[1.0] * num_stages, max_num_batched_tokens=16)
    prompt = list(range(16 * num_chunks))
    run.add("long", prompt, max_tokens=3)
    run.finish()
    assert [len(plan.scheduled) for plan in run.plans] == [1] * (num_chunks + 2)
    time = num_chunks + num_stages - 1
    assert run.clock.now == time + 2 * num_stages  # and two more tokens
    assert run.tokens["long", 0] == unpaged(prompt, SamplingParams(temperature=0), 0, 3)


def test_figures_of_the_bubble(start):
    shares = []
    for num_plans in (5, 8, 27):
        run = start(executor_class=StagedExecutor, stages=[1.0] * 4, max_num_batched_tokens=16)
        for number in range(num_plans):
            run.add(f"r{number}", [number] * 16, max_tokens=1)
        run.finish()
        shares.append(run.executor.idle_share())
    assert shares == pytest.approx([3 / 8, 3 / 11, 1 / 10], abs=1e-12)


@pytest.mark.parametrize("num_requests", [4, 5, 7, 8, 17, 32])
@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_no_stage_is_idle_while_there_are_as_many_decodes(start, num_stages, num_requests):
    """Decodes are divided evenly, whatever their number: plans differ by one at most."""
    run = start(executor_class=StagedExecutor, stages=[1.0] * num_stages, max_num_seqs=64)
    for number in range(num_requests):
        run.add(f"r{number}", [number] * 8, max_tokens=sized(24, 40))
    run.finish()
    end = run.clock.now
    assert run.executor.gaps(4 * num_stages, end - 3 * num_stages) == []
    sizes = [len(plan.scheduled) for plan in run.plans[2 * num_stages : -2 * num_stages]]
    assert max(sizes) <= -(-num_requests // num_stages)
    assert run.endings == {(f"r{number}", 0): "length" for number in range(num_requests)}


def test_fewer_requests_than_stages_leave_them_idle_and_are_not_held_up(start):
    run = start(executor_class=StagedExecutor, stages=[1.0] * 4)
    run.add("alone", [1] * 8, max_tokens=10)
    run.finish()
    assert run.clock.now == 4 * 10
    assert run.executor.idle_share() == pytest.approx(3 / 4)


def test_a_long_prompt_does_not_hold_up_those_who_decode(start):
    """A part of it is in each plan, and each stage has work at all times; one process does so."""
    counts = []
    for num_stages in (1, 2, 4):
        run = start(executor_class=StagedExecutor, stages=[1.0] * num_stages, max_num_seqs=64,
                    max_num_batched_tokens=32)  # fmt: skip
        for number in range(8):
            run.add(f"r{number}", [number] * 8, max_tokens=100)
        for _ in range(20):
            run.step()
        before, start_time = len(run.outputs), run.clock.now
        run.add("long", list(range(320)), max_tokens=1)
        while ("long", 0) not in run.endings:
            run.step()
        assert run.executor.gaps(start_time, run.clock.now) == []
        counts.append((len(run.outputs) - before) / (run.clock.now - start_time))
    assert counts[0] == pytest.approx(8, rel=0.1)
    assert counts[1] == pytest.approx(4, rel=0.1)  # a stage is a half of that work
    assert counts[2] == pytest.approx(2, rel=0.1)


def test_stages_that_differ_wait_for_the_slowest_alone(start):
    """The time of a plan is that of the slowest stage, and that one is never idle."""
    stages = [1.0, 3.0, 2.0]
    run = start(executor_class=StagedExecutor, stages=stages, max_num_seqs=64)
    for number in range(12):
        run.add(f"r{number}", [number] * 8, max_tokens=30)
    run.finish()
    slowest = run.executor.busy[1][6:-6]
    assert all(b[0] == a[1] for a, b in zip(slowest, slowest[1:], strict=False))


def test_no_stage_is_idle_while_requests_come_and_go(start):
    """Random arrivals and lengths, a few more than stages at any time."""
    draw = random.Random(5)
    run = start(executor_class=StagedExecutor, stages=[1.0] * 4, max_num_seqs=64, num_blocks=2000)
    count, seen = 0, []
    while run.clock.now < 600:
        while len(run.engine.scheduler.requests) < 10 or draw.random() < 0.02:
            run.add(f"r{count}", [count] * draw.randint(1, 20), max_tokens=draw.randint(1, 40))
            count += 1
        run.step()
        seen.append(run.clock.now)
    assert count > 50
    assert run.executor.gaps(20, run.clock.now) == []
    run.finish()
    assert len(run.endings) == count
