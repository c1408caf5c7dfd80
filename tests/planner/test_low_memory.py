"""The five ways to need less memory: each frees what its formula says."""

from __future__ import annotations

from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.planner.low_memory import Use, rank_strategies

SPEC = KVCacheSpec(32, 8, 128, 16, "bfloat16")
USE = Use(
    weight_bytes=16_000_000_000,
    weight_bits=16,
    spec=SPEC,
    context=8192,
    sequences=10,
    shared_prefix=4096,
    scratch_bytes=10**9,
)
KV = 10 * 8192 * SPEC.token_bytes


def test_each_frees_what_its_formula_says():
    freed = {one.name: one.freed_bytes for one in rank_strategies(USE)}
    assert USE.device_bytes == 16_000_000_000 + KV + 10**9
    assert freed == {
        "quantize weights": 16_000_000_000 - 4_500_000_000,
        "quantize KV": KV - KV * (128 + 2) // 256,
        "shorter context": KV // 2,
        "more tensor parallelism": (16_000_000_000 + KV) // 2,
        "prefix caching": 9 * 4096 * SPEC.token_bytes,
    }


def test_the_first_frees_most_and_each_has_a_side_effect():
    ranked = rank_strategies(USE)
    assert [one.freed_bytes for one in ranked] == sorted(
        (one.freed_bytes for one in ranked), reverse=True
    )
    assert all(one.side_effect and one.flag.startswith("--") for one in ranked)
    assert all(one.needed_bytes == USE.device_bytes - one.freed_bytes for one in ranked)


def test_what_is_small_already_frees_nothing():
    small = Use(
        weight_bytes=10**9, weight_bits=4, spec=KVCacheSpec(2, 1, 64, 16, "int4"),
        context=16, sequences=1,
    )  # fmt: skip
    freed = {one.name: one.freed_bytes for one in rank_strategies(small)}
    assert freed["quantize weights"] == freed["quantize KV"] == freed["prefix caching"] == 0
