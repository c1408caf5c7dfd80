"""Steps that yield several tokens of a sequence, against generation without cache and batch."""

from __future__ import annotations

import pytest

from quire.core.sampling_params import SamplingParams
from quire.engine.request import sequence_seed

SCHEDULES = [
    {},
    {"max_num_batched_tokens": 3},
    {"max_num_batched_tokens": 16, "mixed_prefill_tokens": 1},
    {"long_prefill_token_threshold": 2},
    {"num_blocks": 14},
    {"num_blocks": 14, "enable_prefix_caching": False},
    {"block_size": 1, "num_blocks": 60},
    {"use_cache": False, "num_blocks": 60},
    {
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": 50,
        "max_position_embeddings": 50,
    },
    {"batching_type": "static", "max_num_seqs": 3},
]


@pytest.mark.parametrize("settings", SCHEDULES, ids=str)
def test_each_schedule_gives_the_same_tokens(start, forcing, unpaged, settings):
    defaults = {"block_size": 4, "max_num_seqs": 6, "looks_ahead": False}
    run = start(executor_class=forcing, **{**defaults, **settings})
    prompts = {f"r{i}": [i % 3] * (1 + 5 * i % 13) for i in range(12)}
    lengths = {name: 1 + 7 * i % 31 for i, name in enumerate(prompts)}
    for name, prompt in prompts.items():
        run.add(name, prompt, seed=len(name), temperature=1.0, max_tokens=lengths[name], n=2)
    run.finish()
    params = SamplingParams(temperature=1.0)
    for name, prompt in prompts.items():
        for index in range(2):
            seed = sequence_seed(len(name), index)
            expected = unpaged(prompt, params, seed, lengths[name], forces=True)
            assert run.tokens[name, index] == expected, (name, index)
            assert run.endings[name, index] == "length"
    stats = run.engine.scheduler.stats
    assert stats.generation_tokens == sum(map(len, run.tokens.values()))
    assert 0 < stats.num_forced_tokens < stats.generation_tokens
    if settings.get("num_blocks") == 14:
        assert stats.num_preemptions > 0


def test_tokens_behind_the_end_are_dropped(start, forcing, unpaged):
    """The end among forced tokens, by each of the ways a token ends a sequence."""
    whole = unpaged([1], SamplingParams(temperature=0.0), 0, 60, forces=True)
    for at, token_id in enumerate(whole):
        first = whole.index(token_id)
        run = start(executor_class=forcing, eos_token_ids=(token_id,))
        run.add("eos", [1], ignore_eos=False, max_tokens=60)
        run.add("id", [1], stop_token_ids=[token_id], max_tokens=60)
        run.add("late", [1], stop_token_ids=[token_id], max_tokens=60, min_tokens=at + 1)
        run.add("length", [1], max_tokens=at + 1)
        run.finish()
        assert run.tokens["eos", 0] == run.tokens["id", 0] == whole[: first + 1]
        assert run.tokens["late", 0] == run.tokens["length", 0] == whole[: at + 1]
        assert [run.endings[name, 0] for name in ("eos", "id", "late")] == ["stop"] * 3
        assert run.endings["length", 0] == "length"


def test_cached_tokens_are_of_prompts_alone(start, forcing):
    """A chunk of forced tokens may hit too, which a request's usage must not show."""
    run = start(executor_class=forcing, block_size=1)
    for name in "ab":
        run.add(name, [1] * 10, max_tokens=60)
        run.finish()
    assert run.tokens["a", 0] == run.tokens["b", 0]
    assert max(output.num_cached_tokens for output in run.outputs) == 9
    assert run.engine.stats()["prefix_cache_hits"] == 9
    computed = [0, 0]
    for plan in run.plans:
        for row in plan.scheduled:
            computed["ab".index(row.request_id)] += row.num_scheduled_tokens
    assert computed[1] < computed[0] - 9


def test_the_end_cuts_counts_and_logprobs_with_the_tokens(start, accepting):
    for at in range(4):
        run = start(executor_class=accepting)
        run.add("r", [1], max_tokens=at + 1, logprobs=0)
        run.finish()
        (output,) = run.outputs
        found = output.result
        assert len(found.token_ids) == at + 1
        assert found.num_accepted == min(at + 1, 2)
        assert [entry.token_id for entry in found.logprobs] == found.token_ids[:3]
        assert (
            run.engine.stats()["structured_output_forced_tokens"] == found.num_forced == (at == 3)
        )


def test_a_result_goes_through_the_engine_whole(start, forcing):
    """What the runner learns to report reaches the output without a line in between."""
    run = start(executor_class=forcing)
    made = []
    run.executor.on_result = lambda result: made.extend(result.results.values())
    run.add("r", [1], max_tokens=200)
    run.finish()
    received = [output.result for output in run.outputs]
    assert len(received) > 20
    assert all(a is b for a, b in zip(made[:-1], received[:-1], strict=True))
