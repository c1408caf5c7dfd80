"""Evicted blocks that come back from tiers: the same tokens, without computing them."""

from __future__ import annotations

import pytest

from quire import SamplingParams
from quire.store.hub import resolve_model

pytestmark = pytest.mark.usefixtures("dear_computing")
ASKED = SamplingParams(temperature=0.8, seed=3, max_tokens=12, logprobs=2, ignore_eos=True)
MIB = 2**20


def ask(llm, prompt):
    return llm.generate({"prompt_token_ids": prompt}, ASKED)[0]


def start(create_llm, **settings):
    """Return an engine whose cache holds one prompt of the tests."""
    return create_llm(
        **{"block_size": 4, "num_gpu_blocks_override": 17, "max_model_len": 64} | settings
    )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kv_cache_dtype": "fp8"},
        {"kv_cache_dtype": "int8"},
        {"model": resolve_model("quire-tiny"), "kv_cache_dtype": "int4"},
        {"kv_canary": "raise"},
        {"model": "tiny-deepseek"},
        {"pipeline_parallel_size": 2},
    ],
)
def test_evicted_blocks_come_back_from_memory(create_llm, prompts, settings):
    one, two = prompts(40, 45)
    plain = start(create_llm, **settings)
    expected = [ask(plain, prompt) for prompt in (one, two)]
    llm = start(create_llm, kv_offload_bytes=MIB, **settings)
    for number in range(3):
        for prompt, right in zip((one, two), expected, strict=True):
            found = ask(llm, prompt)
            assert found.outputs[0].token_ids == right.outputs[0].token_ids
            assert found.outputs[0].logprobs == right.outputs[0].logprobs
            full = (len(prompt) - 1) // 4 * 4
            assert found.num_cached_tokens == (full if number else 0)
    stats = llm.engine.engine.stats()
    # The rest of it was still in the cache.
    assert stats["external_prefix_cache_hits"] > 36 + 44
    assert stats['kv_offload_load_bytes{tier="ram"}'] > 0


def test_what_is_loaded_is_what_the_answer_stands_on(create_llm, prompts):
    """The test above can fail: with other bytes the answer is another one."""
    one, two = prompts(40, 45)
    llm = start(create_llm, kv_offload_bytes=MIB)
    expected = ask(llm, one)
    ask(llm, two)
    llm.engine.executor.tiers._ram._memory[:] = 0
    assert ask(llm, one).outputs[0].logprobs != expected.outputs[0].logprobs


def test_a_small_tier_keeps_what_was_used_last(create_llm, prompts):
    llm = start(create_llm, kv_offload_bytes=8 * 2048)
    one, two, three = prompts(40, 45, 47)
    answers = [ask(llm, prompt).outputs for prompt in (one, two, three, one, three, two)]
    assert answers[3] == answers[0] and answers[4] == answers[2] and answers[5] == answers[1]
    tiers = llm.engine.executor.tiers
    assert tiers._ram.nbytes <= 8 * 2048
