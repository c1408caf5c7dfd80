"""Blocks that one engine stores and another loads: the same tokens, without computing them."""

from __future__ import annotations

import pytest

from quire import SamplingParams
from quire.models.hub import resolve_model

ASKED = SamplingParams(temperature=0.8, seed=3, max_tokens=12, logprobs=2, ignore_eos=True)


class DictStore(dict):
    """A block store in memory."""

    put = dict.__setitem__
    get = dict.__getitem__


def ask(llm, prompt):
    return llm.generate({"prompt_token_ids": prompt}, ASKED)[0]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kv_cache_dtype": "int8"},
        {"model": resolve_model("quire-tiny"), "kv_cache_dtype": "int4"},
        {"kv_canary": "raise"},
    ],
)
def test_an_engine_goes_on_with_the_blocks_of_another(create_llm, prompts, settings):
    prompt, other = prompts(40, 5)
    store = DictStore()
    one, two = (create_llm(block_size=4, **settings) for _ in range(2))
    for llm in (one, two):
        llm.engine.executor.runner.block_store = store
    expected = ask(one, prompt)
    scheduler = one.engine.engine.scheduler
    hashes = list(scheduler.kv.pool.cached)
    scheduler.store_blocks([*hashes, b"unknown"])
    assert not store
    ask(one, other)  # a step takes them along
    assert set(store) == set(hashes)
    ask(two, other)
    two.engine.engine.scheduler.load_blocks(hashes)
    found = ask(two, prompt)
    assert found.outputs[0].token_ids == expected.outputs[0].token_ids
    assert found.outputs[0].logprobs == expected.outputs[0].logprobs
    assert (found.num_cached_tokens, expected.num_cached_tokens) == (36, 0)
    assert ask(two, prompt).outputs == expected.outputs, "and once more, from the cache"


def test_what_is_loaded_is_what_the_answer_stands_on(create_llm, prompts):
    """The test above can fail: with other bytes the answer is another one."""
    (prompt,) = prompts(40)
    store = DictStore()
    llm = create_llm(block_size=4)
    llm.engine.executor.runner.block_store = store
    expected = ask(llm, prompt)
    scheduler = llm.engine.engine.scheduler
    hashes = list(scheduler.kv.pool.cached)
    scheduler.store_blocks(hashes)
    ask(llm, prompt)
    for key in hashes:
        scheduler.kv.pool.forget(scheduler.kv.pool.cached[key])
        store[key] = bytes(len(store[key]))
    scheduler.load_blocks(hashes)
    assert ask(llm, prompt).outputs[0].logprobs != expected.outputs[0].logprobs
