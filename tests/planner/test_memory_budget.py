"""Budgets, block counts, how many sequences fit, and what to do when nothing does."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from quire.core.errors import ConfigError
from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.planner.memory_budget import (
    KVPool,
    MemoryDemand,
    budget_from_total,
    divide_memory,
    num_sequences,
    shares,
)

GIB = 2**30
LLAMA_70B = KVCacheSpec(80, 8, 128, 16, "bfloat16")
DEMAND = MemoryDemand(
    weight_bytes=4 * GIB,
    weight_dtype="float32",
    scratch_bytes=GIB // 2,
    spec=KVCacheSpec(16, 8, 64, 16, "float32"),  # 1 MiB a block
    max_model_len=8192,
)


def test_blocks_from_a_fraction_of_all_memory():
    """floor((0.9 M - W - A) / block)."""
    budget = divide_memory(DEMAND, 10 * GIB, budget_from_total(10 * GIB, 0.9))
    assert budget.num_blocks == int((0.9 * 10 - 4 - 0.5) * 1024) == 4608
    assert budget.kv_bytes == 4608 * 2**20
    assert budget.headroom_bytes == GIB


def test_blocks_from_a_fraction_of_free_memory():
    """The fraction is of what weights and scratch leave, and for KV alone."""
    budget = divide_memory(DEMAND, 10 * GIB, 10 * GIB, free_fraction=0.85)
    assert budget.num_blocks == int(0.85 * 5.5 * 1024) == 4787


def test_absolute_kv_bytes_round_down_to_blocks():
    budget = divide_memory(DEMAND, 10 * GIB, 9 * GIB, GIB + 12345)
    assert (budget.num_blocks, budget.kv_bytes) == (1024, GIB)
    with pytest.raises(ConfigError, match=r"at most 4\.50 GiB.*got 5\.00 GiB"):
        divide_memory(DEMAND, 10 * GIB, 9 * GIB, 5 * GIB)


def test_percentages_sum_to_100():
    """The seed's example: 70B over four 80 GB cards leaves 35, 35, 2 and 8 GB of each."""
    demand = MemoryDemand(
        weight_bytes=35 * 10**9,
        weight_dtype="float16",
        scratch_bytes=2 * 10**9,
        spec=replace(LLAMA_70B, num_kv_heads=2),
        max_model_len=4096,
    )
    budget = divide_memory(demand, 80 * 10**9, budget_from_total(80 * 10**9, 0.9))
    found = [share for _, share in budget.shares().values()]
    assert sum(found) == pytest.approx(100.0, abs=1e-9)
    assert found == pytest.approx([43.8, 2.5, 43.7, 10.0], abs=0.1)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (0, 7, 0), (1, 2, 3, 994), (333, 333, 335, 10**12)])
def test_percentages_always_sum_to_100(sizes):
    found = shares({str(index): size for index, size in enumerate(sizes)})
    assert sum(round(10 * share) for _, share in found.values()) == 1000


def test_number_of_sequences_that_fit():
    """8 x 80 GB at 0.9 with 36.4 GB of weights hold 804 sequences of 2,048 tokens."""
    kv_bytes = budget_from_total(8 * 80 * 10**9, 0.9) - 36_400_000_000
    assert num_sequences(kv_bytes, LLAMA_70B, 2048) == 804
    assert num_sequences(4 * 10**9, LLAMA_70B, 2048) == 5
    assert num_sequences(107_600_000_000, LLAMA_70B, 2048) == 160


def test_the_null_block_holds_no_sequence():
    budget = divide_memory(replace(DEMAND, max_model_len=16), 10 * GIB, 9 * GIB, 10 * 2**20)
    assert (budget.num_blocks, budget.num_sequences(16), budget.num_sequences(48)) == (10, 9, 3)


def fits(setting: str, budget_bytes: int, kv_bytes: int | None) -> bool:
    """Apply a suggestion as its text says and plan again."""
    flags = dict(re.findall(r"(--[a-z-]+) (\S+)", setting))
    spec = replace(DEMAND.spec, dtype=flags.pop("--kv-cache-dtype", DEMAND.spec.dtype))
    demand = replace(DEMAND, spec=spec)
    if "--max-model-len" in flags:
        demand = replace(demand, max_model_len=int(flags.pop("--max-model-len")))
    if flags.pop("--dtype", None):
        demand = replace(demand, weight_bytes=demand.weight_bytes // 2)
    if "--memory" in flags:
        budget_bytes = int(flags.pop("--memory").removesuffix("MiB")) * 2**20
    if "--kv-cache-size" in flags:
        kv_bytes = int(flags.pop("--kv-cache-size").removesuffix("MiB")) * 2**20
    assert not flags
    return divide_memory(demand, 100 * GIB, budget_bytes, kv_bytes).num_blocks > 0


@pytest.mark.parametrize(
    ("budget_gib", "kv_mib"), [(4.7, None), (4.9, None), (3.0, None), (8.0, 300), (8.0, 1)]
)
def test_three_settings_are_offered_and_each_fits(budget_gib, kv_mib):
    budget_bytes = int(budget_gib * GIB)
    kv_bytes = kv_mib * 2**20 if kv_mib else None
    with pytest.raises(ConfigError, match="one request of 8192 tokens") as refusal:
        divide_memory(DEMAND, 100 * GIB, budget_bytes, kv_bytes)
    settings = str(refusal.value).split("would fit: ")[1].rstrip(".").split("; ")
    assert len(settings) == len(set(settings)) == 3
    assert all(fits(setting, budget_bytes, kv_bytes) for setting in settings)


def test_no_setting_is_offered_that_the_machine_cannot_serve():
    """Terabytes of --memory were, where --max-num-seqs or the blocks ask for more than there is."""
    device = DEMAND.least_bytes - 1
    with pytest.raises(ConfigError) as refusal:
        divide_memory(DEMAND, device, GIB)
    settings = str(refusal.value).split("would fit: ")[1].rstrip(".").split("; ")
    assert settings and all("--max-model-len" in setting for setting in settings)
    assert all(fits(setting, GIB, None) for setting in settings)
    wide = replace(DEMAND, scratch_bytes=10_000 * GIB)
    match = "not have the memory for any context: lower --max-num-seqs"
    with pytest.raises(ConfigError, match=match):
        divide_memory(wide, 20 * GIB, 10 * GIB)


def test_the_smallest_budget_that_fits():
    assert divide_memory(DEMAND, 100 * GIB, DEMAND.least_bytes).num_sequences(8192) == 1
    with pytest.raises(ConfigError):
        divide_memory(DEMAND, 100 * GIB, DEMAND.least_bytes - 1)


def test_a_draft_model_shares_block_ids_and_budget():
    draft = replace(
        DEMAND,
        weight_bytes=GIB // 4,
        scratch_bytes=GIB // 4,
        spec=KVCacheSpec(4, 8, 64, 16, "float32"),  # 0.25 MiB a block
    )
    demand = DEMAND.with_model(draft)
    budget = divide_memory(demand, 10 * GIB, 9 * GIB)
    assert budget.num_blocks == int((9 - 5) * 1024 / 1.25)
    assert budget.kv_bytes == budget.num_blocks * 5 * 2**18
    assert budget.headroom_bytes == 10 * GIB - 5 * GIB - budget.kv_bytes
    assert divide_memory(demand, 10 * GIB, demand.least_bytes).num_sequences(8192) == 1
    with pytest.raises(ConfigError):
        divide_memory(demand, 10 * GIB, demand.least_bytes - 1)
    given = divide_memory(demand, 10 * GIB, 9 * GIB, 1000 * 2**20)
    assert (given.num_blocks, given.kv_bytes) == (800, 1000 * 2**20)
    with pytest.raises(AssertionError):
        replace(DEMAND, pools=(KVPool(replace(DEMAND.spec, block_size=8)),))


def test_pools_with_blocks_of_their_own_lie_on_the_device_or_the_host():
    on_device = replace(DEMAND, pools=(KVPool(DEMAND.spec, 1024),))
    assert divide_memory(on_device, 10 * GIB, 9 * GIB).num_blocks == (9 - 4.5 - 1) * 1024
    assert divide_memory(on_device, 10 * GIB, 9 * GIB).kv_bytes == 4.5 * GIB
    on_host = replace(DEMAND, pools=(KVPool(DEMAND.spec, 1024, "host"),))
    budget = divide_memory(on_host, 10 * GIB, 9 * GIB, host_bytes=GIB)
    assert (budget.num_blocks, budget.kv_bytes) == (4.5 * 1024, 4.5 * GIB)
    assert budget.headroom_bytes == GIB
    with pytest.raises(ConfigError, match=r"on the host must fit in 922 MiB; got 1\.00"):
        divide_memory(on_host, 10 * GIB, 9 * GIB, host_bytes=int(0.9 * GIB))
