"""Requests with many sequences: they start in parts, and leave places for others."""

from __future__ import annotations

import pytest

from quire.core.sampling_params import SamplingParams
from quire.engine.request import sequence_seed
from quire.engine.scheduling.sequence_groups import PART
from tests.engine.staged_executor import StagedExecutor

SEATS = 64


def prompt_of(length, seed=0):
    return [(7 * i + seed + 1) % 60 for i in range(length)]


def steps_until(run, key):
    """Step until a sequence has ended; return after how many."""
    for count in range(1, 200):
        run.step()
        if key in run.endings:
            return count
    raise AssertionError(f"{key} did not end")


def test_one_request_takes_all_places(start):
    """With ``n`` as large as ``max_num_seqs`` it had them until its end, and others waited."""
    run = start(num_blocks=300, max_num_seqs=SEATS)
    run.add("many", prompt_of(20), n=SEATS, max_tokens=100)
    for _ in range(4):
        run.step()
    assert len(run.plans[-1].scheduled) == SEATS // 2
    run.add("other", prompt_of(20, 1), max_tokens=2)
    assert steps_until(run, ("other", 0)) <= 3
    run.finish()
    assert {name for name, _ in run.endings} == {"many", "other"}
    assert set(run.endings.values()) == {"length"} and len(run.endings) == SEATS + 1


def test_those_after_it_in_the_queue_wait_for_all_of_its_places(start):
    """It stood first in the queue, and no request passed it until as many sequences had ended."""
    run = start(num_blocks=600, max_num_seqs=SEATS)
    for i in range(SEATS - PART - 1):
        run.add(f"r{i}", [i], max_tokens=150)
    for _ in range(4):
        run.step()
    run.add("many", prompt_of(20), n=SEATS, max_tokens=10)
    run.add("other", prompt_of(20, 1), max_tokens=2)
    assert steps_until(run, ("other", 0)) <= 5
    assert ("r0", 0) not in run.endings
    run.finish()


@pytest.mark.parametrize("num_tokens", [1, 16, 33])
def test_its_prompt_is_computed_once_but_for_ends_of_blocks(start, unpaged, num_tokens):
    run = start(num_blocks=400, max_num_seqs=SEATS)
    params = {"temperature": 1.0, "max_tokens": 12, "ignore_eos": True}
    run.add("many", prompt_of(num_tokens), n=SEATS - 3, seed=5, **params)
    run.finish()
    for index in range(SEATS - 3):
        expected = unpaged(
            prompt_of(num_tokens), SamplingParams(**params), sequence_seed(5, index), 12
        )
        assert run.tokens["many", index] == expected
    of_prompts = sum(
        row.num_scheduled_tokens
        for plan in run.plans
        for row in plan.scheduled
        if row.num_computed_tokens < num_tokens
    )
    num_parts = -(-(SEATS - 3) // PART)
    assert of_prompts <= num_tokens + (num_parts - 1) * 16


@pytest.mark.parametrize("steps", [0, 1, 2, 6])
@pytest.mark.parametrize("stages", [(), (1.0, 1.0)])
def test_parts_that_have_not_started_end_with_it(start, steps, stages):
    """By an abort and by a deadline, in each state: all sequences end, and once."""
    executor = {"executor_class": StagedExecutor} if stages else {}
    run = start(num_blocks=400, max_num_seqs=SEATS, stages=stages, **executor)
    run.add("many", prompt_of(40), n=SEATS, max_tokens=50)
    run.add("late", prompt_of(40, 1), n=SEATS, max_tokens=50, deadline=3.5)
    run.add("other", [1], max_tokens=20)
    for _ in range(steps):
        run.step()
    run.abort("many")
    run.finish()
    reasons = [{run.endings[name, i] for i in range(SEATS)} for name in ("many", "late")]
    assert reasons == [{"abort"}, {"timeout"}]
    assert run.endings["other", 0] == "length"


def test_without_other_requests_all_places_are_its_own(start):
    run = start(num_blocks=300, max_num_seqs=SEATS, takes_more=False)
    run.add("many", prompt_of(20), n=SEATS, max_tokens=10)
    run.step()
    assert len(run.plans[-1].forks) == SEATS - 1
    run.finish()


def test_sequences_that_share_nothing_found_by_content_split_off_at_once(start):
    """Without a prefix cache each part would compute the whole prompt."""
    run = start(num_blocks=300, max_num_seqs=SEATS, enable_prefix_caching=False)
    run.add("many", prompt_of(40), n=SEATS, max_tokens=3)
    run.finish()
    assert run.plans[0].num_scheduled_tokens == 40 and len(run.plans[0].forks) == SEATS - 1
