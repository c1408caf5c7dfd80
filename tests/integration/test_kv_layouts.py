"""``--kv-layout``: the same tokens, other blocks; what a worst-case reservation wastes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.core.errors import PromptTooLongError

LAYOUTS = ("paged", "static", "contiguous")


def tables(llm: LLM) -> list[list[int]]:
    """Return the block ids of every live request, checked."""
    kv = llm.engine.engine.scheduler.kv
    kv.check_integrity()
    return [kv.block_ids(request) for request in llm.engine.engine.scheduler.requests.values()]


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_the_example_of_a_static_cache(create_llm: Callable[..., LLM], layout: str) -> None:
    """Three requests of 50, 100 and 300 tokens in 512 slots each waste 1,086 of 1,536."""
    llm = create_llm(kv_layout=layout, max_model_len=512)
    for length in (50, 100, 300):
        params = SamplingParams(max_tokens=2, ignore_eos=True)
        llm.engine.add_request(str(length), [7] * length, params)
    llm.engine.step()
    use = llm.engine.engine.scheduler.kv.slot_use()
    assert (use.reserved, use.used, use.wasted) == (1536, 450, 1086)
    assert use.fragmentation == pytest.approx(0.707, abs=5e-4)
    described = llm.engine.describe_cache()
    assert "450 of 1536 slots filled (29.3%), 1086 wasted" in described
    assert ": reserved]" in described
    assert llm.engine.stats()["kv_cache_fragmentation_perc"] == pytest.approx(0.707, abs=5e-4)
    assert [len(table) for table in tables(llm)] == [32, 32, 32]


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2"])
@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_the_same_tokens(
    create_llm: Callable[..., LLM],
    prompts: Callable[..., list[list[int]]],
    family: str,
    layout: str,
) -> None:
    asked = [{"prompt_token_ids": ids} for ids in prompts(60, 5, 33, 48, 1, 60, 17)]
    params = [
        SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
        *(SamplingParams(seed=s, max_tokens=9 + s, n=1 + s % 3) for s in range(1, 7)),
    ]
    settings: dict[str, Any] = {"max_model_len": 128, "block_size": 8}
    expected = create_llm(family, **settings).generate(asked, params)
    # Room for two at a time.
    llm = create_llm(family, **settings, kv_layout=layout, num_gpu_blocks_override=2 * 16 + 1 + 5)
    found = llm.generate(asked, params)
    assert [output.outputs for output in found] == [output.outputs for output in expected]
    assert all(output.num_cached_tokens == 0 for output in found)
    assert llm.engine.stats()["num_preemptions"] == 0
    assert llm.engine.stats()["kv_cache_usage_perc"] == 0


def test_a_contiguous_request_lies_in_one_run(create_llm: Callable[..., LLM]) -> None:
    """Also where requests before it have ended in any order."""
    llm = create_llm(
        kv_layout="contiguous", max_model_len=64, block_size=8, num_gpu_blocks_override=28
    )
    for index in range(12):
        length = 1 + index * 7 % 11
        params = SamplingParams(max_tokens=length, ignore_eos=True)
        llm.engine.add_request(str(index), [1 + index] * (3 + index), params)
    most = 0
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
        held = [table for table in tables(llm) if table]
        most = max(most, len(held))
        assert all(table == list(range(table[0], table[0] + 8)) for table in held)
    assert most == 3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_pool_below_the_context_ends_a_request_where_it_ends(
    create_llm: Callable[..., LLM], layout: str
) -> None:
    llm = create_llm(kv_layout=layout, max_model_len=64, block_size=8, num_gpu_blocks_override=4)
    params = SamplingParams(max_tokens=None, ignore_eos=True)
    assert len(llm.generate([[1] * 5], params)[0].outputs[0].token_ids) == 20
    with pytest.raises(PromptTooLongError, match="24 tokens"):
        llm.generate([[1] * 25], params)


def test_the_log_says_that_blocks_are_not_shared(
    create_llm: Callable[..., LLM], quire_log: list[logging.LogRecord]
) -> None:
    create_llm(kv_layout="static")
    line = "enable_prefix_caching = off: blocks are not shared with --kv-layout static"
    assert line in [record.getMessage() for record in quire_log]
