"""Steps with proposed tokens, against generation without cache and batch."""

from __future__ import annotations

import random

import pytest

from quire.core.sampling_params import SamplingParams
from quire.engine.request import sequence_seed

SCHEDULES = [
    {},
    {"max_num_batched_tokens": 3},
    {"max_num_batched_tokens": 16, "mixed_prefill_tokens": 1},
    {"num_blocks": 14},
    {"num_blocks": 14, "enable_prefix_caching": False},
    {"num_blocks": 100, "block_size": 1},
    {"num_blocks": 200, "kv_layout": "contiguous", "max_position_embeddings": 100},
    {"batching_type": "static", "max_num_seqs": 3},
]


def expect(run, unpaged, prompts, lengths, temperature):
    for name, prompt in prompts.items():
        params = SamplingParams(temperature=temperature)
        for index in range(2):
            seed = sequence_seed(len(name), index)
            expected = unpaged(prompt, params, seed, lengths[name])
            assert run.tokens[name, index] == expected, (name, index)
            assert run.endings[name, index] == "length"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("most", [1, 4, 30])
@pytest.mark.parametrize("settings", SCHEDULES, ids=str)
def test_each_schedule_gives_the_same_tokens(
    start, proposing, unpaged, settings, most, temperature
):
    defaults = {"block_size": 4, "max_num_seqs": 6, "looks_ahead": False}
    run = start(executor_class=proposing, most_proposed=most, **{**defaults, **settings})
    prompts = {f"r{i}": [i % 3] * (1 + 5 * i % 13) for i in range(12)}
    lengths = {name: 1 + 7 * i % 31 for i, name in enumerate(prompts)}
    for name, prompt in prompts.items():
        run.add(
            name, prompt, seed=len(name), temperature=temperature, max_tokens=lengths[name], n=2
        )
    run.finish()
    expect(run, unpaged, prompts, lengths, temperature)
    if settings.get("num_blocks") == 14:
        assert run.engine.scheduler.stats.num_preemptions > 0


def test_fewer_steps_bring_the_same_tokens(start, proposing, unpaged):
    steps = {}
    for most in (0, 4):
        run = start(executor_class=proposing, most_proposed=most)
        run.add("a", [1, 2, 3], max_tokens=100)
        run.finish()
        assert run.tokens["a", 0] == unpaged([1, 2, 3], SamplingParams(temperature=0.0), 0, 100)
        steps[most] = len(run.plans)
    assert steps[0] == 100
    assert steps[4] < 60


def test_the_first_token_waits_for_no_proposal(start, proposing):
    run = start(executor_class=proposing, most_proposed=4)
    run.add("a", [1] * 40, max_tokens=9, n=2)
    run.finish()
    lookahead = [[row.num_lookahead_tokens for row in plan.scheduled] for plan in run.plans]
    assert lookahead[0] == [0]
    assert lookahead[1] == [4, 4]


def test_no_proposal_is_asked_for_in_a_rest_until_a_request_arrives_or_ends(start, proposing):
    run = start(executor_class=proposing, most_proposed=0)
    policy = run.engine.scheduler.lookahead.policy
    policy.num_resting = 4
    run.add("a", [1, 2], max_tokens=8)
    run.finish()
    assert policy.asked == [["a"], ["a"]]  # in the first of its 7 steps after the prompt, and later
    run.add("b", [1, 2], max_tokens=4)
    for _ in range(3):
        run.step()
    run.add("c", [3], max_tokens=8)
    run.finish()
    # c's prompt in b's last step, then c alone, and again after four steps.
    assert policy.asked[2:] == [["b"], ["b"], ["c"], ["c"]]


@pytest.mark.parametrize("num_new", [0, 1, 2, 3])
def test_a_rest_of_many_goes_on_while_one_comes_for_one_that_goes(start, proposing, num_new):
    run = start(executor_class=proposing, most_proposed=0, max_num_seqs=32)
    policy = run.engine.scheduler.lookahead.policy
    policy.num_resting = 100
    for i in range(10):
        run.add(f"r{i}", [i], max_tokens=30 if i else 6)
    while not policy.asked:
        run.step()
    del policy.asked[:]
    for i in range(num_new):
        run.add(f"new{i}", [i], max_tokens=30)
    for _ in range(12):
        run.step()
    # The first has gone meanwhile.
    assert bool(policy.asked) == (num_new in (0, 3))


def test_a_step_draws_no_more_than_there_are_rows_of_logits(start, proposing):
    run = start(executor_class=proposing, most_proposed=30, max_num_seqs=20)
    for i in range(20):
        run.add(f"r{i}", [i], max_tokens=40)
    run.finish()
    for plan in run.plans:
        drawn = [row.num_lookahead_tokens + 1 for row in plan.scheduled if row.samples]
        assert sum(drawn) <= run.engine.scheduler.options.max_logits_rows
    assert any(sum(row.num_lookahead_tokens for row in plan.scheduled) > 9 for plan in run.plans)


def test_nothing_is_proposed_past_the_end(start, proposing):
    run = start(executor_class=proposing, most_proposed=8, block_size=4, num_blocks=5)
    run.add("a", [1, 2, 3], max_tokens=13)
    run.finish()
    for plan in run.plans:
        for row in plan.scheduled:
            known = row.num_computed_tokens + row.num_scheduled_tokens
            assert known + row.num_lookahead_tokens < 3 + 13


def test_the_prefix_cache_learns_what_was_accepted_and_nothing_else(start, proposing):
    """A second request with the whole answer as its prompt finds all full blocks that held."""
    run = start(executor_class=proposing, most_proposed=6, block_size=4)
    run.add("a", [1, 2, 3], max_tokens=61)
    run.finish()
    answer = [1, 2, 3, *run.tokens["a", 0]]
    run.add("b", [*answer, 5], max_tokens=20)
    run.add("c", [*answer[:-1], 999], max_tokens=20)
    run.finish()
    cached = {o.request_id: o.num_cached_tokens for o in run.outputs}
    assert cached["b"] >= len(answer) - 1 - 4  # the last token's KV is not written
    plain = start(most_proposed=None, block_size=4)
    for name, prompt in (("b", [*answer, 5]), ("c", [*answer[:-1], 999])):
        plain.add(name, prompt, max_tokens=20)
    plain.finish()
    assert plain.tokens == {key: run.tokens[key] for key in plain.tokens}


def test_stops_within_a_round(start, proposing, unpaged):
    whole = unpaged([1], SamplingParams(temperature=0.0), 0, 60)
    for at in range(0, 60, 7):
        token_id = whole[at]
        first = whole.index(token_id)
        run = start(executor_class=proposing, most_proposed=5, eos_token_ids=(token_id,))
        run.add("eos", [1], ignore_eos=False, max_tokens=60)
        run.add("id", [1], stop_token_ids=[token_id], max_tokens=60, logprobs=0)
        run.add("late", [1], stop_token_ids=[token_id], max_tokens=60, min_tokens=at + 1)
        run.add("length", [1], max_tokens=at + 1)
        run.finish()
        assert run.tokens["eos", 0] == run.tokens["id", 0] == whole[: first + 1]
        assert run.tokens["late", 0] == run.tokens["length", 0] == whole[: at + 1]
        entries = [e for o in run.outputs if o.request_id == "id" for e in o.result.logprobs or ()]
        assert [entry.token_id for entry in entries] == whole[: first + 1]


def test_a_thousand_rounds_with_random_cancels_leak_no_block(start, proposing, unpaged):
    """``Run`` checks the integrity of the cache after every step."""
    draw = random.Random(5)
    run = start(
        executor_class=proposing, most_proposed=7, block_size=4, num_blocks=60, max_num_seqs=8
    )
    prompts = {}
    for number in range(1000):
        if draw.random() < 0.25:
            name = f"r{number}"
            prompts[name] = [draw.randrange(3) for _ in range(1 + draw.randrange(30))]
            run.add(name, prompts[name], max_tokens=1 + draw.randrange(40), n=draw.choice([1, 2]))
        if draw.random() < 0.1 and prompts:
            run.abort(draw.choice(list(prompts)))
        if run.engine.has_unfinished_requests():
            run.step()
    run.finish()
    for (name, _), tokens in run.tokens.items():
        params = SamplingParams(temperature=0.0)
        assert tokens == unpaged(prompts[name], params, 0, len(tokens))
    assert set(run.endings.values()) == {"length", "abort"}


def test_while_drafters_rest_no_slot_is_given_and_no_request_asked_about(start, proposing, unpaged):
    """Drafters were told of each step, and slots looked after, where no proposal paid."""
    run = start(executor_class=proposing, most_proposed=4)
    policy = run.engine.scheduler.lookahead.policy
    policy.ready = policy.keeps_states = False
    plans = []
    schedule = run.engine.scheduler.schedule
    run.engine.scheduler.schedule = lambda *arguments: (
        plans.append(schedule(*arguments)) or plans[-1]
    )
    run.add("a", [1, 2, 3], max_tokens=20)
    run.finish()
    assert run.tokens["a", 0] == unpaged([1, 2, 3], SamplingParams(temperature=0.0), 0, 20)
    assert policy.asked == []
    assert policy.begun == ["a"]
    assert not any(plan.keeps_states for plan in plans)
    assert not any(row.num_lookahead_tokens for plan in plans for row in plan.scheduled)
    # All steps but the prompt's are compared with those in which tokens may be proposed.
    assert policy.compared == [(False, 1, 1)] * 19
