"""The engine end to end on a simulated paged cache: equal tokens in every scenario."""

from __future__ import annotations

import random
from typing import Any

import pytest

from quire.core.errors import ConfigError, EngineDeadError, PromptTooLongError, RequestError
from quire.core.sampling_params import SamplingParams
from quire.engine.request import derive_seed, sequence_seed
from tests.sizes import sized

GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=1.0)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed * 7919 + length).choices(range(1000), k=length)


@pytest.mark.parametrize("block_size", [1, 8, 16, 32])
def test_tokens_equal_the_oracle_for_every_block_size(start, unpaged, block_size):
    run = start(num_blocks=2000 // block_size, block_size=block_size, max_num_batched_tokens=64)
    prompts = {f"r{i}": prompt_of(length, i) for i, length in enumerate([1, 15, 16, 17, 33, 100])}
    for request_id, prompt in prompts.items():
        run.add(request_id, prompt, max_tokens=20)
    run.finish()
    for request_id, prompt in prompts.items():
        assert run.tokens[request_id, 0] == unpaged(prompt, GREEDY, 0, 20)


def test_physical_order_of_blocks_does_not_matter(start, unpaged):
    run, pool_order = start(num_blocks=40), list(range(1, 40))
    run.kv.pool.allocate(39)
    random.Random(1).shuffle(pool_order)
    run.kv.pool.release(pool_order)
    run.add("r", prompt_of(200), max_tokens=100)
    run.step()
    assert run.executor.held["r"].block_ids[:5] == pool_order[:-6:-1]
    run.finish()
    assert run.tokens["r", 0] == unpaged(prompt_of(200), GREEDY, 0, 100)


def test_sixty_mixed_prompts(start, unpaged):
    """Their tokens: each equals its run alone."""
    run, rng = start(num_blocks=120, max_num_seqs=16, max_num_batched_tokens=100), random.Random(4)
    asked = {f"r{i}": (prompt_of(rng.randint(1, 150), i), rng.randint(1, 30)) for i in range(60)}
    for request_id, (prompt, max_tokens) in asked.items():
        run.add(request_id, prompt, max_tokens=max_tokens)
    run.finish()
    for request_id, (prompt, max_tokens) in asked.items():
        assert run.tokens[request_id, 0] == unpaged(prompt, GREEDY, 0, max_tokens)
        assert run.endings[request_id, 0] == "length"


def test_n_sequences_copy_the_shared_partial_block(start, unpaged):
    """A 33-token prompt and n=4 cost 3 copies; outputs equal unshared runs."""
    run = start()
    run.add("r", prompt_of(33), n=4, max_tokens=40, temperature=1.0, seed=5)
    run.step()
    assert [run.kv.pool.ref_cnt[b] for b in run.executor.held["r"].block_ids] == [4, 4, 4]
    run.finish()
    assert sum(len(plan.block_copies) for plan in run.plans) == 3
    assert run.engine.stats()["num_block_copies"] == 3
    assert run.plans[0].num_scheduled_tokens == 33
    for index in range(4):
        seed = sequence_seed(5, index)
        assert run.tokens["r", index] == unpaged(prompt_of(33), SAMPLED, seed, 40)


def test_n_sequences_of_whole_blocks_copy_nothing(start):
    run = start()
    run.add("r", prompt_of(32), n=4, max_tokens=10)
    run.finish()
    assert run.engine.stats()["num_block_copies"] == 0
    assert len({tuple(run.tokens["r", index]) for index in range(4)}) == 1


@pytest.mark.parametrize("num_blocks", [200, 12])
@pytest.mark.parametrize("use_cache", [True, False])
def test_n_sequences_equal_separate_requests(start, unpaged, num_blocks, use_cache):
    """Also when the pool holds only some of them at once, and when every step recomputes."""
    run = start(
        num_blocks=num_blocks, use_cache=use_cache, max_num_batched_tokens=48, looks_ahead=False
    )
    run.add("r", prompt_of(100), n=5, max_tokens=60, temperature=1.0, seed=9)
    run.add("s", prompt_of(20), max_tokens=60)
    run.finish()
    assert (run.engine.stats()["num_preemptions"] > 0) == (num_blocks == 12)
    for index in range(5):
        seed = sequence_seed(9, index)
        assert run.tokens["r", index] == unpaged(prompt_of(100), SAMPLED, seed, 60)
    assert run.tokens["s", 0] == unpaged(prompt_of(20), GREEDY, 0, 60)


def test_preemption_keeps_tokens(start, unpaged):
    """A pool for 3 of 8 sequences; the oldest is never preempted."""
    run = start(num_blocks=1 + 3 * 5, looks_ahead=False)
    for i in range(8):
        run.add(f"r{i}", prompt_of(40, i), max_tokens=40)
    run.finish()
    for i in range(8):
        assert run.tokens[f"r{i}", 0] == unpaged(prompt_of(40, i), GREEDY, 0, 40)
    assert run.engine.stats()["num_preemptions"] > 0
    assert all(o.metrics.num_preemptions == 0 for o in run.outputs if o.request_id == "r0")


def test_a_preempted_request_hits_its_own_blocks(start):
    run = start(num_blocks=1 + 10, looks_ahead=False)
    run.add("old", prompt_of(64, 1), max_tokens=48)
    run.add("young", prompt_of(64, 2), max_tokens=20)
    run.finish()
    resumed = [new for plan in run.plans for new in plan.new_requests if new.request_id == "young"]
    assert len(resumed) >= 2
    assert resumed[-1].num_computed_tokens > 0
    assert all(o.num_cached_tokens == 0 for o in run.outputs)  # not a saving to report


@pytest.mark.parametrize("seed", range(sized(14, 40)))
def test_random_load(start, unpaged, seed):
    """Random settings, arrivals, lengths, aborts, ``n`` and priorities on tiny pools.

    Every step is checked in ``Run.step``; every sequence ends once, with the oracle's tokens.
    """
    rng = random.Random(seed)
    block_size = rng.choice([1, 4, 16])
    longest = 90
    num_blocks = 1 + -(-longest // block_size) + rng.randint(0, 120 // block_size)
    chunked = rng.random() < 0.8
    run = start(
        num_blocks=num_blocks,
        looks_ahead=rng.random() < 0.5,
        takes_more=rng.random() < 0.7,
        block_size=block_size,
        max_num_seqs=rng.randint(4, 12),
        max_num_batched_tokens=rng.randint(3, 60) if chunked else 200,
        max_model_len=200,
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=rng.choice([0, 7]) if chunked else 0,
        enable_prefix_caching=rng.random() < 0.8,
        use_cache=rng.random() < 0.85,
        scheduling_policy=rng.choice(["fcfs", "priority"]),
    )
    expected: dict[tuple[str, int], list[int]] = {}
    aborted: set[str] = set()
    prefixes = [prompt_of(30, 100), prompt_of(30, 101)]
    for number in range(sized(15, 25)):
        for _ in range(rng.randint(0, 4)):
            if run.engine.has_unfinished_requests():
                run.step()
        prompt = rng.choice(prefixes)[: rng.randint(0, 30)] + prompt_of(rng.randint(1, 30), number)
        n, max_tokens = rng.choice([1, 1, 1, 2, 4]), rng.randint(1, longest - len(prompt))
        own_seed = rng.choice([None, number])
        params = rng.choice([GREEDY, SAMPLED])
        run.add(
            f"r{number}",
            prompt,
            priority=rng.randint(-2, 2),
            extra_keys=rng.choice([(), ("salt:a",)]),
            n=n,
            max_tokens=max_tokens,
            temperature=params.temperature,
            seed=own_seed,
        )
        base = derive_seed(0, number) if own_seed is None else own_seed
        for index in range(n):
            tokens = unpaged(prompt, params, sequence_seed(base, index), max_tokens)
            expected[f"r{number}", index] = tokens
        if rng.random() < 0.25:
            victim = f"r{rng.randint(0, number)}"
            if any((victim, i) not in run.endings and (victim, i) in expected for i in range(4)):
                aborted.add(victim)
            run.abort(victim)
    run.finish()
    assert run.endings.keys() == expected.keys()
    for key, tokens in expected.items():
        if run.endings[key] == "abort":
            assert key[0] in aborted
            assert run.tokens[key] == tokens[: len(run.tokens[key])]
        else:
            assert run.tokens[key] == tokens


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 7}, {"num_blocks": 14}])
def test_prompt_logprobs_come_once_and_gapless(start, settings):
    """Also over chunks and preemption; a warm prefix gives no less."""
    run, prompt = start(**({"num_blocks": 60} | settings)), prompt_of(50)
    run.add("warm", prompt, max_tokens=5)
    run.add("old", prompt_of(64, 3), max_tokens=100)
    run.add("r", prompt, max_tokens=60, prompt_logprobs=0, logprobs=0)
    run.finish()
    news = [o for o in run.outputs if o.request_id == "r"]
    parts = [o.result.prompt_logprobs for o in news if o.result.prompt_logprobs]
    entries = [entry for part in parts for entry in part.entries]
    starts = [part.start for part in parts]
    assert starts[0] == 1 and sorted(starts) == starts
    assert [entry.token_id for entry in entries] == prompt[1:]
    logprobs = [entry.token_id for o in news for entry in o.result.logprobs or ()]
    assert logprobs == run.tokens["r", 0]
    assert all(o.num_cached_tokens == 0 for o in news)


def test_recomputing_everything_costs_5050_and_the_cache_100(start, unpaged):
    """One prompt token, 100 outputs."""
    for use_cache, expected in ((False, 5050), (True, 100)):
        run = start(use_cache=use_cache)
        run.add("r", [7], max_tokens=100)
        run.finish()
        assert run.engine.stats()["num_computed_tokens"] == expected
        assert run.tokens["r", 0] == unpaged([7], GREEDY, 0, 100)


def test_decode_is_one_query_a_step(start):
    """m output tokens cost the prefill and m - 1 steps of one token."""
    run = start()
    run.add("r", prompt_of(37), max_tokens=20)
    run.finish()
    assert [plan.num_scheduled_tokens for plan in run.plans] == [37] + [1] * 19


def test_eos_ends_a_sequence_and_nothing_is_computed_after_it(start, unpaged):
    """The last token is never fed to the model."""
    tokens = unpaged(prompt_of(10), GREEDY, 0, 50)
    eos = tokens[12]
    length = tokens.index(eos) + 1
    run = start(eos_token_ids=(eos,))
    run.add("stops", prompt_of(10), max_tokens=50, ignore_eos=False)
    run.add("goes on", prompt_of(10), max_tokens=50, ignore_eos=True)
    run.add("by id", prompt_of(10), max_tokens=50, stop_token_ids=[eos])
    run.finish()
    assert run.tokens["stops", 0] == tokens[:length]
    assert run.tokens["goes on", 0] == tokens
    last = {o.request_id: o for o in run.outputs if o.finish_reason}
    assert (last["stops"].finish_reason, last["stops"].stop_reason) == ("stop", None)
    assert (last["by id"].finish_reason, last["by id"].stop_reason) == ("stop", eos)
    assert last["goes on"].finish_reason == "length"
    computed = [r for plan in run.plans for r in plan.scheduled if r.request_id == "stops"]
    assert sum(r.num_scheduled_tokens for r in computed) == 10 + length - 1


def test_without_max_tokens_a_sequence_ends_with_the_context(start):
    run = start(max_model_len=64)
    run.add("r", prompt_of(10), max_tokens=None)
    run.finish()
    assert len(run.tokens["r", 0]) == 54
    assert run.endings["r", 0] == "length"


def test_without_max_tokens_a_sequence_ends_with_the_pool(start):
    """Alone in a pool smaller than the context it fills every block and ends; no deadlock."""
    run = start(num_blocks=5, max_model_len=200)
    run.add("r", prompt_of(10), max_tokens=None)
    run.finish()
    assert len(run.tokens["r", 0]) == 64 + 1 - 10


def refusal(run: Any, prompt: list[int], **params: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        run.add("bad", prompt, **params)
    assert not run.engine.has_unfinished_requests()
    return caught.value


@pytest.mark.parametrize(
    ("prompt", "params", "parts"),
    [
        ([], {}, ["prompt", "none"]),
        ([1, 1000], {}, ["[0, 1000)", "1 to 1000"]),
        ([-1], {}, ["-1"]),
        ([1] * 64, {"max_tokens": 1}, ["(64 tokens)", "got 64 prompt tokens"]),
        ([1] * 60, {"max_tokens": 5}, ["(64 tokens)", "60 + 5 = 65"]),
        ([1] * 10, {"n": 9}, ["--max-num-seqs (8)", "got 9"]),
        ([1], {"priority": 10**400}, ["[priority]", "32 bits"]),
    ],
)
def test_requests_that_can_never_run_are_refused_with_counts(start, prompt, params, parts):
    message = str(refusal(start(max_model_len=64, max_num_seqs=8), prompt, **params))
    assert all(part in message for part in parts), message


def test_a_request_larger_than_the_pool_is_refused(start):
    run = start(num_blocks=5, max_model_len=200)
    message = str(refusal(run, prompt_of(50), max_tokens=16))
    assert "KV cache holds (64 tokens)" in message and "50 + 16 = 66" in message
    assert isinstance(refusal(run, prompt_of(65)), PromptTooLongError)
    run.add("fits", prompt_of(50), max_tokens=15)
    run.finish()


def test_an_id_is_unique_among_live_requests_and_free_afterwards(start):
    run = start()
    run.add("r", [1], n=2, max_tokens=3)
    for taken in ("r", "r#1"):
        with pytest.raises(RequestError, match="unique"):
            run.add(taken, [1])
    run.step()
    run.engine.stop_sequence("r", 0)
    with pytest.raises(RequestError, match="unique"):
        run.add("r", [1])
    run.finish()
    run.tokens.clear()
    run.endings.clear()
    run.add("r", [1], max_tokens=2)
    run.finish()
    assert len(run.tokens["r", 0]) == 2


def test_settings_that_contradict_each_other_are_refused(start):
    with pytest.raises(ConfigError, match="--max-num-batched-tokens must be at least"):
        start(enable_chunked_prefill=False, max_num_batched_tokens=100)
    with pytest.raises(ConfigError, match="--long-prefill-token-threshold needs"):
        start(
            enable_chunked_prefill=False,
            max_num_batched_tokens=8192,
            long_prefill_token_threshold=5,
        )


def test_abort_in_every_state_frees_blocks_at_once(start, unpaged):
    """Waiting, in the middle of a prompt, decoding, forked, before the fork, preempted."""
    run = start(num_blocks=60, max_num_seqs=6, max_num_batched_tokens=64)
    run.add("other", prompt_of(20, 1), max_tokens=60)
    run.add("decoding", prompt_of(20, 2), max_tokens=60)
    run.step()
    run.add("forked", prompt_of(40, 3), n=3, max_tokens=60)
    run.step()
    run.step()
    assert run.kv.pool.ref_cnt[run.executor.held["forked"].block_ids[0]] == 3
    for request_id, num_sequences in (("forked", 3), ("decoding", 1)):
        run.abort(request_id)
        assert [run.endings[request_id, i] for i in range(num_sequences)] == (
            ["abort"] * num_sequences
        )
    assert run.kv.pool.num_used == len(run.kv.block_ids(run.engine.scheduler.running[0]))
    run.add("long", prompt_of(300, 4), n=2, max_tokens=60)
    run.add("waiting", prompt_of(20, 5), n=5, max_tokens=60)
    run.step()
    used = run.kv.pool.num_used
    run.abort("waiting")
    assert run.kv.pool.num_used == used
    run.abort("long")
    assert run.kv.pool.num_used < used
    assert run.abort("never seen") is None
    run.finish()
    assert run.tokens["other", 0] == unpaged(prompt_of(20, 1), GREEDY, 0, 60)
    assert len(run.endings) == 1 + 1 + 3 + 2 + 5


def test_abort_of_a_preempted_request(start):
    run = start(num_blocks=1 + 10, looks_ahead=False)
    run.add("old", prompt_of(64, 1), max_tokens=90)
    run.add("young", prompt_of(64, 2), max_tokens=60)
    while run.engine.stats()["num_preemptions"] == 0:
        run.step()
    used = run.kv.pool.num_used
    run.abort("young")
    assert (run.kv.pool.num_used, run.endings["young", 0]) == (used, "abort")
    run.finish()
    assert all("young" not in run.executor.held for _ in [0])


def test_a_stop_string_ends_one_sequence_only(start, unpaged):
    run = start()
    run.add("r", prompt_of(33), n=3, max_tokens=30)
    run.step()
    run.step()
    run.engine.stop_sequence("r", 1)
    run.engine.stop_sequence("r", 1)
    run.engine.stop_sequence("gone", 0)
    run.finish()
    assert run.engine.stats()['request_success{finished_reason="stop"}'] == 1
    assert len(run.tokens["r", 1]) == 2
    assert run.tokens["r", 0] == run.tokens["r", 2] == unpaged(prompt_of(33), GREEDY, 0, 30)


def test_an_error_ends_only_its_request(start, unpaged):
    """And its blocks are not offered to others, whose prompt is the same."""
    run = start()
    run.executor.fail = lambda plan: {
        r.request_id: "logits are not finite" for r in plan.scheduled if r.request_id == "bad"
    }
    run.add("bad", prompt_of(50), n=1, max_tokens=30)
    run.add("good", prompt_of(20), max_tokens=30)
    run.step()
    assert run.endings == {("bad", 0): "error"}
    assert [o.result.error.message for o in run.outputs if o.result.error] == [
        "logits are not finite"
    ]
    run.add("again", prompt_of(50), max_tokens=30)
    run.finish()
    assert run.plans[1].new_requests[0].num_computed_tokens == 0
    assert run.tokens["good", 0] == unpaged(prompt_of(20), GREEDY, 0, 30)
    assert run.tokens["again", 0] == unpaged(prompt_of(50), GREEDY, 0, 30)


@pytest.mark.parametrize("failing", ["r", "r#1"])
def test_an_error_while_forking_ends_one_sequence(start, unpaged, failing):
    run = start()
    run.executor.fail = lambda plan: {failing: "no token is allowed"} if plan.forks else {}
    run.add("r", prompt_of(33), n=3, max_tokens=20)
    run.finish()
    failed = 0 if failing == "r" else 1
    for index in range(3):
        if index == failed:
            assert run.endings["r", index] == "error"
        else:
            assert run.tokens["r", index] == unpaged(prompt_of(33), GREEDY, 0, 20)
    run.add("last", [1], max_tokens=2)
    run.finish()
    assert set(run.executor.held) == {"last"}


def test_an_error_before_the_fork_ends_the_whole_group(start):
    run = start(max_num_batched_tokens=20)
    run.executor.fail = lambda plan: {"r": "broken"}
    run.add("r", prompt_of(33), n=3, max_tokens=20)
    run.finish()
    assert run.endings == {("r", index): "error" for index in range(3)}


def test_a_failed_step_ends_everything(start):
    def explode(plan: Any) -> dict[str, str]:
        raise RuntimeError("illegal instruction")

    run = start()
    run.add("r", prompt_of(33), n=2, max_tokens=20)
    run.step()
    run.add("waiting", prompt_of(33), max_tokens=20)
    run.executor.fail = explode
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="RuntimeError: illegal instruction"):
            run.engine.step()
    with pytest.raises(EngineDeadError):
        run.add("late", [1])
    assert not run.engine.has_unfinished_requests()
    assert run.kv.pool.num_used == 0
    assert run.engine.stats()['request_success{finished_reason="error"}'] == 3


def test_seeds_are_those_of_the_request(start, unpaged):
    """An explicit seed gives the same tokens whatever else runs; without, each request its own."""
    alone, crowded = start(), start(max_num_batched_tokens=16)
    alone.add("r", prompt_of(9), temperature=1.0, seed=3, max_tokens=12)
    for i in range(5):
        crowded.add(f"x{i}", prompt_of(9), temperature=1.0, max_tokens=12)
    crowded.add("r", prompt_of(9), temperature=1.0, seed=3, max_tokens=12)
    alone.finish()
    crowded.finish()
    assert alone.tokens["r", 0] == crowded.tokens["r", 0] == unpaged(prompt_of(9), SAMPLED, 3, 12)
    assert len({tuple(tokens) for tokens in crowded.tokens.values()}) == 6


def test_idle_engine_has_nothing_to_do(start):
    run = start()
    assert run.engine.step() == []
    assert run.plans == []
    assert run.engine.stats()["num_steps"] == 0
    assert not run.engine.has_unfinished_requests()
