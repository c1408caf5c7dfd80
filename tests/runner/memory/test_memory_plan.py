"""The memory plan: what is allocated, what is lowered, what is refused, and the lines for it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.planner.memory_budget import MemoryDemand
from quire.runner.memory.memory_plan import MemoryPlan, plan_memory
from quire.settings.config import EngineConfig
from quire.settings.resolve import resolve
from quire.system.machine import Machine
from tests.tiny_model import TINY_MODEL

MIB = 2**20
MACHINE = Machine(num_cores=1, total_bytes=200 * MIB, free_bytes=100 * MIB)
#: 4 KiB a token, 64 KiB a block.
SPEC = KVCacheSpec(num_layers=4, num_kv_heads=2, head_dim=64, block_size=16, dtype="float32")


def plan(**settings: Any) -> MemoryPlan:
    resolved = resolve(EngineConfig.from_keywords(**settings), MACHINE, TINY_MODEL)
    demand = MemoryDemand(
        weight_bytes=20 * MIB,
        weight_dtype="float32",
        scratch_bytes=10 * MIB,
        spec=SPEC,
        max_model_len=resolved.max_model_len,
    )
    return plan_memory(resolved, demand, MACHINE.free_bytes)


def test_the_fraction_is_of_what_is_free() -> None:
    found = plan(gpu_memory_utilization=0.5)
    assert found.budget.num_blocks == 20 * MIB // SPEC.block_bytes
    assert found.budget.headroom_bytes == 50 * MIB
    assert found.max_model_len == 4096


def test_the_other_fraction_is_of_what_weights_and_scratch_leave() -> None:
    found = plan(free_gpu_memory_fraction=0.5)
    assert found.budget.num_blocks == 35 * MIB // SPEC.block_bytes
    assert found.budget.headroom_bytes == 35 * MIB
    within = plan(free_gpu_memory_fraction=0.5, memory=50 * MIB)
    assert within.budget.num_blocks == 10 * MIB // SPEC.block_bytes


def test_what_is_advised_with_a_fraction_of_what_is_free_fits() -> None:
    with pytest.raises(ConfigError) as caught:
        plan(free_gpu_memory_fraction=0.5, memory=40 * MIB, max_model_len=2048)
    advice = re.findall(r"(?:--max-model-len (\d+) )?--memory (\d+)MiB", str(caught.value))
    assert advice
    for length, memory in advice:
        plan(
            free_gpu_memory_fraction=0.5,
            memory=int(memory) * MIB,
            max_model_len=int(length or 2048),
        )


def test_a_cap_in_tokens() -> None:
    found = plan(max_tokens_in_paged_kv_cache=1000, max_model_len=100)
    assert found.budget.num_blocks == 63 + 1
    assert "KV cache: 63 blocks of 16 tokens" in found.lines()[1]
    assert plan(max_tokens_in_paged_kv_cache=1000).max_model_len == 1008
    both = {"max_tokens_in_paged_kv_cache": "100k", "free_gpu_memory_fraction": 0.1}
    assert plan(**both).budget.num_blocks == 7 * MIB // SPEC.block_bytes
    with pytest.raises(ConfigError, match="--max-tokens-in-paged-kv-cache. must hold one"):
        plan(max_tokens_in_paged_kv_cache=80, max_model_len=100)


def test_no_more_blocks_than_requests_can_hold() -> None:
    found = plan(max_num_seqs=2, max_model_len=100)
    assert found.budget.num_blocks == 2 * 7 + 1
    assert found.budget.kv_bytes == 15 * SPEC.block_bytes


def test_bytes_for_the_cache_alone_are_taken_as_given() -> None:
    found = plan(kv_cache_memory_bytes=20 * MIB, max_num_seqs=1, max_model_len=100)
    assert found.budget.num_blocks == 20 * MIB // SPEC.block_bytes


def test_blocks_as_given_whatever_the_memory() -> None:
    assert plan(num_gpu_blocks_override=7).budget.num_blocks == 7
    with pytest.raises(ConfigError, match="--num-gpu-blocks-override. must fit in"):
        plan(num_gpu_blocks_override=10**9)
    with pytest.raises(ConfigError, match="--num-gpu-blocks-override. must be at least 2"):
        plan(num_gpu_blocks_override=1)


def test_context_not_given_is_lowered_to_what_the_given_blocks_hold() -> None:
    found = plan(num_gpu_blocks_override=7)
    assert found.max_model_len == 6 * SPEC.block_size
    assert found.choices == ("max_model_len = 96: what the given blocks hold",)
    assert plan(num_gpu_blocks_override=7, max_model_len=200).max_model_len == 200


@pytest.mark.parametrize(
    "settings", [{"memory": 34 * MIB}, {"memory": 90 * MIB, "kv_cache_memory_bytes": 4 * MIB}]
)
def test_a_context_that_was_not_given_is_lowered(settings: dict[str, int]) -> None:
    found = plan(**settings)
    assert found.max_model_len == 1024 - 16  # 64 blocks, one of them the null block
    assert found.choices == ("max_model_len = 1008: what fits of the model's",)


def test_a_context_that_was_asked_for_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        plan(memory=34 * MIB, max_model_len=2048)
    message = str(caught.value)
    assert "2048" in message and "4.0 MiB" in message
    assert "--max-model-len 1008" in message and "--memory 39MiB" in message


def test_weights_that_leave_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="--memory"):
        plan(memory=20 * MIB)


def test_the_lines_say_what_fits() -> None:
    first, second = plan(memory=62 * MIB, max_num_seqs=64).lines()
    assert "weights 20.0 MiB (20.0%) + scratch 10.0 MiB (10.0%) + KV 32.0 MiB (32.0%)" in first
    assert "headroom 38.0 MiB (38.0%) = 100 MiB" in first
    assert sum(map(float, re.findall(r"\(([\d.]+)%\)", first))) == pytest.approx(100)
    assert "511 blocks of 16 tokens in float32, 4.0 KiB a token" in second
    assert "1 of 4,096 tokens, 7 of 1,024 tokens, 31 of 256 tokens" in second
