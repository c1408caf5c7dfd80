"""A KV cache in 8 and 4 bits through the engine: quality, capacity, sharing, reports."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kv_quality import held_out_ids, perplexity
from quire import LLM, SamplingParams
from quire.core.counts import format_bytes
from quire.core.errors import ConfigError
from quire.store.hub import resolve_model
from tests.sizes import sized
from tools.random_checkpoint import PRESETS, random_checkpoint

#: Name to bits of an element, scales included, where a head has 32 elements.
NARROW = {"fp8": 8.0, "int8": 8.5, "int4": 5.0}
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)
MIB = 1 << 20
#: Its heads have 32 elements, those of the random models 16.
TINY = resolve_model("quire-tiny")


def num_blocks(llm: LLM) -> int:
    return llm.engine.engine.executor.num_blocks


def test_perplexity_is_within_half_a_percent_in_8_bits(device: str) -> None:
    """On windows of quire-tiny's held-out text; in 4 bits within three percent."""
    found = {}
    for dtype in ("float32", "bfloat16", *NARROW):
        llm = LLM(kv_cache_dtype=dtype, device=device, threads=1, kv_cache_memory_bytes=32 * MIB)
        found[dtype] = perplexity(llm, held_out_ids(llm)[: sized(1024, 2048)])
        llm.shutdown()
    assert 1.0 < found["float32"] < 3.0
    for dtype in NARROW:
        assert found[dtype] != found["float32"]
        for wide in ("float32", "bfloat16"):
            most = 1.03 if dtype == "int4" else 1.005
            assert abs(math.log(found[dtype] / found[wide])) < math.log(most), found


@pytest.mark.parametrize("dtype", NARROW)
def test_the_same_bytes_hold_more_blocks(create_llm: Callable[..., LLM], dtype: str) -> None:
    """Whole blocks of --kv-cache-memory-bytes, scales and minima among them."""
    wide = create_llm(TINY, kv_cache_dtype="bfloat16", kv_cache_memory_bytes=6 * MIB)
    narrow = create_llm(TINY, kv_cache_dtype=dtype, kv_cache_memory_bytes=6 * MIB)
    assert num_blocks(narrow) == int(num_blocks(wide) * 16 / NARROW[dtype])
    executor = narrow.engine.engine.executor
    budget = executor.memory.budget
    assert budget.kv_bytes <= 6 * MIB < budget.kv_bytes + budget.demand.block_bytes
    per_token = f"{format_bytes(budget.demand.spec.token_bytes)} a token"
    assert any(per_token in line for line in executor.memory.lines())
    assert budget.kv_bytes == budget.num_blocks * budget.demand.spec.block_bytes
    assert budget.kv_bytes == executor.runner.kv_cache.nbytes


def test_4_bits_run_three_times_the_requests(
    create_llm: Callable[..., LLM], prompts: Callable[..., list[list[int]]]
) -> None:
    """Of equal bytes: 16 requests that take turns with 16 bits run side by side with 4."""
    params = SamplingParams(temperature=0, max_tokens=13, ignore_eos=True)
    most = {}
    for dtype in ("bfloat16", "int4"):
        llm = create_llm(
            TINY,
            kv_cache_dtype=dtype,
            kv_cache_memory_bytes=21 * 16 * 3072,  # 21 blocks of 16 tokens in 16 bits
            max_num_seqs=32,
            max_model_len=64,
            enable_prefix_caching=False,
        )
        for i, prompt in enumerate(prompts(*[51] * 16)):
            llm.engine.add_request(f"request {i}", prompt, params)
        most[dtype] = 0
        while llm.engine.has_unfinished_requests():
            llm.engine.step()
            most[dtype] = max(most[dtype], llm.engine.stats()["num_requests_running"])
        assert llm.engine.stats()["num_preemptions"] == 0
    assert most == {"bfloat16": 5, "int4": 16}


def test_fp8_doubles_what_fits_beside_the_weights(create_llm: Callable[..., LLM]) -> None:
    settings: dict[str, Any] = {"memory": 48 * MIB, "max_num_seqs": 4096}
    wide, narrow = (create_llm(kv_cache_dtype=d, **settings) for d in ("float16", "fp8_e4m3"))
    assert num_blocks(narrow) // 2 == num_blocks(wide)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_scales_are_part_of_what_was_granted(create_llm: Callable[..., LLM], dtype: str) -> None:
    """All that weights leave is granted, and not a byte more."""
    settings: dict[str, Any] = {"kv_cache_dtype": dtype, "memory": 128 * MIB, "max_num_seqs": 4096}
    budget = create_llm(TINY, **settings).engine.engine.executor.memory.budget
    assert budget.demand.fixed_bytes + budget.kv_bytes <= 128 * MIB
    left = 128 * MIB - budget.demand.fixed_bytes
    same = create_llm(TINY, **settings, kv_cache_memory_bytes=left)
    assert num_blocks(same) == budget.num_blocks
    with pytest.raises(ConfigError, match="--kv-cache-memory-bytes. must be at most"):
        create_llm(TINY, **settings, kv_cache_memory_bytes=left + 1)


def test_heads_that_do_not_divide_into_groups_are_refused(
    create_llm: Callable[..., LLM],
) -> None:
    """By the setting's name."""
    with pytest.raises(ConfigError, match="int4 needs heads of a multiple of 32 elements; got 16"):
        create_llm("tiny-llama", kv_cache_dtype="int4")


@pytest.mark.parametrize("dtype", NARROW)
def test_equals_the_reference(
    create_llm: Callable[..., LLM],
    prompts: Callable[..., list[list[int]]],
    tmp_path: Path,
    dtype: str,
) -> None:
    random_checkpoint(tmp_path, {**PRESETS["tiny-llama"], "head_dim": 32})
    results = []
    for device in ("cpu", "reference"):
        llm = create_llm(tmp_path, device=device, kv_cache_dtype=dtype, dtype="float32")
        results.append(llm.generate(prompts(40)[0], GREEDY)[0].outputs[0])
    assert results[0].token_ids == results[1].token_ids
    ours, theirs = (result.cumulative_logprob for result in results)
    assert ours == pytest.approx(theirs, abs=1e-3)


@pytest.mark.parametrize("dtype", NARROW)
def test_a_shared_prefix_is_read_from_the_cache(
    create_llm: Callable[..., LLM], prompts: Callable[..., list[list[int]]], dtype: str
) -> None:
    llm = create_llm(TINY, kv_cache_dtype=dtype)
    (prompt,) = prompts(50)
    first, second = (llm.generate(prompt, GREEDY)[0] for _ in range(2))
    assert second.num_cached_tokens >= 32
    assert first.outputs[0].token_ids == second.outputs[0].token_ids
    assert first.outputs[0].cumulative_logprob == second.outputs[0].cumulative_logprob
