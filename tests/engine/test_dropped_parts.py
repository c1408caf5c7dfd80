"""A part of a long prompt given up in the midst of its step: only waiting times change."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.core.sampling_params import SamplingParams
from quire.engine.scheduling.abortable_chunks import MAX_DROPPED
from tests.engine.conftest import Run, oracle
from tests.sizes import sized

GREEDY = SamplingParams(temperature=0.0)

FEW = {"mixed_prefill_tokens": 16, "max_num_batched_tokens": 64, "max_num_seqs": 8}


def comes(run: Run, name: str, length: int = 5) -> None:
    run.add(name, [hash(name) % 900] * length, max_tokens=2)


@pytest.mark.parametrize("stream", [False, True])
def test_who_comes_in_the_midst_is_next(start, stream):
    run = start(block_size=4, **FEW)
    if stream:
        run.add("stream", [7], max_tokens=50)
        run.step()
    run.add("long", list(range(100)), max_tokens=1)
    run.step()
    long = run.engine.scheduler.sequences.group("long")[0]
    before, streamed = long.num_computed_tokens, len(run.tokens.get(("stream", 0), ()))
    run.request_arrived = lambda: comes(run, "short") or True
    run.step()
    assert long.num_computed_tokens == before, "its part was given up"
    assert len(run.tokens.get(("stream", 0), ())) == streamed + stream, "decodes are computed"
    run.request_arrived = lambda: True
    run.step()
    assert run.tokens["short", 0] and long.num_computed_tokens == before
    run.step()
    assert long.num_computed_tokens == before, "once more"
    run.step()
    assert long.num_computed_tokens > before, "then it is computed, whatever requests arrive"
    assert run.engine.stats()["dropped_prompt_parts"] == MAX_DROPPED == 2
    run.finish()


def test_only_parts_that_are_most_of_a_step_are_given_up(start):
    run = start(block_size=4, **FEW | {"mixed_prefill_tokens": 4})
    for number in range(5):
        run.add(f"stream{number}", [number], max_tokens=50)
    run.step()
    run.add("long", list(range(100)), max_tokens=1)
    run.request_arrived = lambda: pytest.fail("five decodes would be computed twice")
    run.finish()


@pytest.mark.parametrize("n", [1, 3])
def test_the_last_part_of_a_long_prompt_is_given_up_as_well(start, n):
    """It would bring the first tokens: those, and the sequences that split off, come later."""
    prompt = list(range(36))
    run = start(block_size=4, **FEW)
    run.add("long", prompt, max_tokens=3, n=n)
    run.step()
    run.step()
    long = run.engine.scheduler.sequences.group("long")[0]
    assert long.num_computed_tokens == 32
    run.request_arrived = lambda: comes(run, "short") or True
    run.step()
    assert long.num_computed_tokens == 32 and ("long", 0) not in run.tokens
    run.request_arrived = lambda: False
    run.step()
    assert run.tokens["short", 0]
    run.finish()
    for index in range(n):
        assert run.tokens["long", index] == oracle(prompt, GREEDY, 0, 3)


def test_a_prompt_that_ends_and_a_batch_known_beforehand_are_not_given_up(start):
    for options, length in (({}, 10), ({"takes_more": False}, 100)):
        run = start(block_size=4, **FEW, **options)
        run.add("only", list(range(length)), max_tokens=3)
        run.request_arrived = lambda: pytest.fail("asked")
        run.finish()


def test_who_shares_what_was_given_up_computes_it(start):
    """Blocks are found by content from the plan on; one that was not filled must not be."""
    run = start(block_size=4, **FEW)
    prompt = list(range(40))
    run.add("first", prompt, max_tokens=3)
    run.request_arrived = lambda: run.add("second", prompt[:15], max_tokens=3) or True
    run.step()
    assert run.kv.pool.cached == {}
    run.request_arrived = lambda: False
    run.finish()
    for name, own in (("first", prompt), ("second", prompt[:15])):
        request = next(o for o in run.outputs if o.request_id == name)
        assert request.result.token_ids
        assert run.tokens[name, 0] == oracle(own, GREEDY, 0, 3)


@settings(
    max_examples=sized(20, 150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 4, 16]), st.integers(30, 80))
def test_tokens_are_the_same_whichever_requests_arrive(start, seed, block_size, num_blocks):
    choose = random.Random(seed)
    run = start(num_blocks=max(num_blocks, 400 // block_size), block_size=block_size, **FEW)
    prompts, number = {}, 0

    def add() -> bool:
        nonlocal number
        name, number = f"r{number}", number + 1
        start_of = choose.choice(list(prompts.values()) or [[]])
        shared = start_of[: choose.randrange(len(start_of) + 1)]
        fresh = choose.choices(range(900), k=choose.choice([1, 5, 40, 90]))
        prompts[name] = (shared + fresh)[:120]
        run.add(name, prompts[name], max_tokens=6, n=choose.choice([1, 1, 3]))
        return True

    for _ in range(3):
        add()
    run.request_arrived = lambda: choose.random() < 0.7 and (number >= 20 or add())
    run.finish()
    for (name, _), tokens in run.tokens.items():
        assert tokens == oracle(prompts[name], GREEDY, 0, 6)
