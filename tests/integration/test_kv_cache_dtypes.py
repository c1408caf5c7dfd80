"""A KV cache in 8 bits through the engine: quality, capacity, sharing, reports."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.kv_quality import held_out_ids, perplexity
from quire import LLM, SamplingParams
from quire.core.errors import ConfigError

NARROW = ["fp8", "int8"]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)
MIB = 1 << 20


def num_blocks(llm: LLM) -> int:
    return llm.engine.engine.executor.num_blocks


def test_perplexity_is_within_half_a_percent(device: str) -> None:
    """On windows of quire-tiny's held-out text."""
    found = {}
    for dtype in ("float32", "bfloat16", *NARROW):
        llm = LLM(kv_cache_dtype=dtype, device=device, threads=1, kv_cache_memory_bytes=32 * MIB)
        found[dtype] = perplexity(llm, held_out_ids(llm)[:2048])
        llm.shutdown()
    assert 1.0 < found["float32"] < 3.0
    for dtype in NARROW:
        assert found[dtype] != found["float32"]
        for wide in ("float32", "bfloat16"):
            assert abs(math.log(found[dtype] / found[wide])) < math.log(1.005), found


@pytest.mark.parametrize("dtype", NARROW)
def test_the_same_bytes_hold_twice_the_blocks(create_llm: Callable[..., LLM], dtype: str) -> None:
    """Exactly, of --kv-cache-memory-bytes; the scales of int8 are in the plan besides."""
    wide = create_llm(kv_cache_dtype="bfloat16", kv_cache_memory_bytes=6 * MIB)
    narrow = create_llm(kv_cache_dtype=dtype, kv_cache_memory_bytes=6 * MIB)
    assert num_blocks(narrow) == 2 * num_blocks(wide)
    executor = narrow.engine.engine.executor
    budget = executor.memory.budget
    assert budget.kv_bytes == budget.num_blocks * budget.demand.spec.allocated_block_bytes
    assert budget.kv_bytes == executor.runner._kv_cache.nbytes


def test_fp8_doubles_what_fits_beside_the_weights(create_llm: Callable[..., LLM]) -> None:
    settings: dict[str, Any] = {"memory": 48 * MIB, "max_num_seqs": 4096}
    wide, narrow = (create_llm(kv_cache_dtype=d, **settings) for d in ("float16", "fp8_e4m3"))
    assert num_blocks(narrow) // 2 == num_blocks(wide)


def test_int8_leaves_room_for_its_scales(create_llm: Callable[..., LLM]) -> None:
    """Blocks of exactly the budget are refused when their scales would not fit with them."""
    llm = create_llm(kv_cache_dtype="int8", memory=48 * MIB, max_num_seqs=4096)
    budget = llm.engine.engine.executor.memory.budget
    assert budget.demand.fixed_bytes + budget.kv_bytes <= 48 * MIB
    left = 48 * MIB - budget.demand.fixed_bytes
    with pytest.raises(ConfigError, match="--kv-cache-memory-bytes must be at most"):
        create_llm(
            kv_cache_dtype="int8", memory=48 * MIB, max_num_seqs=4096, kv_cache_memory_bytes=left
        )


@pytest.mark.parametrize("dtype", NARROW)
def test_equals_the_reference(
    create_llm: Callable[..., LLM], prompts: Callable[..., list[list[int]]], dtype: str
) -> None:
    results = []
    for device in ("cpu", "reference"):
        llm = create_llm(device=device, kv_cache_dtype=dtype, dtype="float32")
        results.append(llm.generate(prompts(40)[0], GREEDY)[0].outputs[0])
    assert results[0].token_ids == results[1].token_ids
    ours, theirs = (result.cumulative_logprob for result in results)
    assert ours == pytest.approx(theirs, abs=1e-3)


@pytest.mark.parametrize("dtype", NARROW)
def test_a_shared_prefix_is_read_from_the_cache(
    create_llm: Callable[..., LLM], prompts: Callable[..., list[list[int]]], dtype: str
) -> None:
    llm = create_llm(kv_cache_dtype=dtype)
    (prompt,) = prompts(50)
    first, second = (llm.generate(prompt, GREEDY)[0] for _ in range(2))
    assert second.num_cached_tokens >= 32
    assert first.outputs[0].token_ids == second.outputs[0].token_ids
    assert first.outputs[0].cumulative_logprob == second.outputs[0].cumulative_logprob
