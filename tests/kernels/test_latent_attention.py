"""Latent attention: right against the reference, and the same bits however the work is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from quire.core.errors import ConfigError, UnsupportedInputError
from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.kernels.cpu.attention import CpuAttention, CpuKVCache
from quire.kernels.cpu.latent_attention import CpuLatentAttention
from quire.kernels.cpu.native import native
from quire.kernels.reference.kv_cache import ReferenceKVCache
from quire.kernels.reference.latent_attention import ReferenceLatentAttention
from tests.kernels.attention_cases import Case, Tables
from tests.kernels.attention_runs import Parts
from tests.kernels.conftest import ALL_ISAS
from tests.kernels.latent_cases import SHAPES, Latents
from tests.kernels.paired_attention import PAIR_ISAS
from tests.kernels.torch_copies import tensors
from tests.sizes import sized

torch.set_num_threads(1)

ISAS = ALL_ISAS
pytestmark = pytest.mark.kernels("store_latents", "split_queries", "linear", "paged_attention")
LENS = [1, 17, 256, 300]


def random_rows(case: Latents, lens: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return queries and latents of each request."""
    rng = np.random.default_rng(7)
    queries, row, _ = case.widths
    return [
        (rng.standard_normal((n, queries), np.float32), rng.standard_normal((n, row), np.float32))
        for n in lens
    ]


def run(
    case: Latents, tables: Tables, rows: list[Any], steps: Sequence[Parts], reference: bool = False
) -> list[np.ndarray]:
    """Run the steps in turn on a cache full of NaN; each request's (length, N value) rows."""
    weights, rope = case.parameters()
    if reference:
        weights = replace(weights, norm=torch.from_numpy(weights.norm))
        attention: Any = ReferenceLatentAttention(case.spec, weights, tensors(rope))
        cache: Any = ReferenceKVCache(case.cache_spec, tables.num_blocks)
    else:
        attention = CpuLatentAttention(case.spec, weights, rope)
        cache = CpuKVCache(case.cache_spec, tables.num_blocks)
        cache.native.memory[:] = 0xFF
        cache.native.scales[:] = 0xFF
    made = [np.full((len(q), case.widths[2]), np.nan, np.float32) for q, _ in rows]
    for parts in steps:
        batch = tables.step(parts)
        given = [
            np.concatenate([rows[i][side][first:end] for i, first, end in parts]) for side in (0, 1)
        ]
        out = np.empty((len(batch.positions), case.widths[2]), np.float32)
        if reference:
            given, batch = [torch.from_numpy(x) for x in given], tensors(batch)
        plan = attention.plan(batch, cache)
        attention.run(*given, plan, torch.from_numpy(out) if reference else out)
        at = 0
        for i, first, end in parts:
            made[i][first:end] = out[at : at + end - first]
            at += end - first
    return made


def halves(lens: Sequence[int]) -> list[Parts]:
    first = [(row, 0, length // 2) for row, length in enumerate(lens) if length > 1]
    return [first, [(row, length // 2, length) for row, length in enumerate(lens)]]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("block_size", [16, 5])
def test_equals_the_reference(isa: str, shape: str, block_size: int) -> None:
    """Ragged lengths, a chunk after cached tokens, shuffled blocks, NaN in unwritten slots."""
    case = replace(SHAPES[shape], block_size=block_size)
    tables, rows = case.tables(LENS), random_rows(case, LENS)
    ours = run(case, tables, rows, halves(LENS))
    for got, want in zip(ours, run(case, tables, rows, halves(LENS), True), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "fp8_e4m3", "int8"])
@pytest.mark.parametrize("shape", ["odd", "twenty"])
@pytest.mark.parametrize("block_size", [16, 3])
def test_narrow_caches_equal_the_reference(
    isa: str, dtype: str, shape: str, block_size: int
) -> None:
    """Both round rows to the same values, but for some that a norm leaves at the edge of another;
    where pairs are multiplied, queries and weights, too."""
    case = replace(SHAPES[shape], dtype=dtype, block_size=block_size)
    tables, rows = case.tables(LENS), random_rows(case, LENS)
    ours = run(case, tables, rows, halves(LENS))
    atol = 2e-2 if dtype == "fp8_e4m3" or (dtype == "bfloat16" and isa in PAIR_ISAS) else 1e-3
    for got, want in zip(ours, run(case, tables, rows, halves(LENS), True), strict=True):
        np.testing.assert_allclose(got, want, atol=atol)


@pytest.mark.parametrize("shape", ["odd", "twenty"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_bits_do_not_depend_on_chunks_batch_blocks_or_threads(
    isa: str, threads: int, dtype: str, shape: str
) -> None:
    case = replace(SHAPES[shape], dtype=dtype)
    lens = [17, 620, 300]
    rows = random_rows(case, lens)
    want = run(case, case.tables(lens), rows, [[(i, 0, n) for i, n in enumerate(lens)]])
    alone = [[(1, 0, 33)], [(1, 33, 619)], [(1, 619, 620)]]
    one_by_one: list[Parts] = [[(0, i, i + 1)] for i in range(17)]
    company = [
        [(1, 0, 256), (2, 0, 100)], [(2, 100, 300)], [(0, 0, 16), (1, 256, 620)], [(0, 16, 17)],
    ]  # fmt: skip
    for steps, size in ((alone, 16), (one_by_one, 16), (company, 16), (company, 5)):
        cut = replace(case, block_size=size)
        got = run(cut, cut.tables(lens, seed=size), rows, steps)
        for row in {row for parts in steps for row, _, _ in parts}:
            np.testing.assert_array_equal(got[row], want[row])


def test_heads_in_turn_give_the_same_bits(isa: str) -> None:
    """A step too large to take all heads at once, and its tokens in small steps."""
    # More heads of tokens than go at once: 15,307 with keys of 8, 13,797 with all of "lite"; few
    # tokens of more heads see fewer others.
    heads, length = sized((248, 63), (16, 900))
    own = sized({"key": 8, "value": 8}, {})
    case, third = replace(SHAPES["lite"], heads=heads, **own), length // 3
    rows = random_rows(case, [length])
    whole = run(case, case.tables([length]), rows, [[(0, 0, length)]])
    steps: list[Parts] = [[(0, at, at + third)] for at in range(0, length, third)]
    np.testing.assert_array_equal(run(case, case.tables([length]), rows, steps)[0], whole[0])


def test_pieces_in_turn_give_the_same_bits() -> None:
    """One query whose parts of all pieces are more than a step keeps: two threads share them."""
    length = 17000
    case = Latents(dtype="bfloat16", heads=128, rank=512, rope=64, key=8, value=8)
    tables, rng = case.tables([length]), np.random.default_rng(2)
    weights, rope = case.parameters(max_positions=length)
    attention = CpuLatentAttention(case.spec, weights, rope)
    cache = CpuKVCache(case.cache_spec, tables.num_blocks)
    memory = cache.native.memory.view(np.uint16)
    memory[:] = np.resize(rng.integers(0x3C00, 0x3F00, 1 << 16, np.uint16), memory.shape)
    plan = attention.plan(tables.step([(0, length - 1, length)]), cache)
    given = [rng.standard_normal((1, width), np.float32) for width in case.widths[:2]]
    found, threads = [], native.num_threads()
    try:
        for count in (1, 2):
            native.set_num_threads(count)
            out = np.empty((1, case.widths[2]), np.float32)
            found.append(attention.run(*(x.copy() for x in given), plan, out))
    finally:
        native.set_num_threads(threads)
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize("shape", ["odd", "twenty"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_paths_of_a_tree_see_their_own_tokens(isa: str, dtype: str, shape: str) -> None:
    """Two tokens for one position: each gets what it gets alone in its place."""
    case = replace(SHAPES[shape], dtype=dtype)
    rows = random_rows(case, [40])
    tables = case.tables([40])
    weights, rope = case.parameters()
    queries, latents = rows[0]
    found = []
    for picked in ([30], [31], [30, 31]):
        attention = CpuLatentAttention(case.spec, weights, rope)
        cache = CpuKVCache(case.cache_spec, tables.num_blocks)
        out = np.empty((30, case.widths[2]), np.float32)
        known = tables.step([(0, 0, 30)])
        attention.run(queries[:30].copy(), latents[:30].copy(), attention.plan(known, cache), out)
        batch = tables.step([(0, 30, 30 + len(picked))])
        batch.positions[:] = 30
        if len(picked) > 1:
            batch.tree_starts = np.array([30], np.int32)
            batch.tree_slots = batch.slot_mapping.reshape(-1, 1).copy()
        out = np.empty((len(picked), case.widths[2]), np.float32)
        given = queries[picked], latents[picked]
        attention.run(*(x.copy() for x in given), attention.plan(batch, cache), out)
        found.append(out)
    np.testing.assert_array_equal(np.concatenate(found[:2]), found[2])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_copied_blocks_and_slots_are_read_as_their_sources(dtype: str) -> None:
    case = Latents(dtype=dtype)
    rows, tables = random_rows(case, [33, 33]), case.tables([33, 33])
    weights, rope = case.parameters()
    attention = CpuLatentAttention(case.spec, weights, rope)
    cache = CpuKVCache(case.cache_spec, tables.num_blocks)
    cache.native.memory[:] = 0xFF
    queries, latents = rows[0]

    def step(row: int, first: int, end: int) -> np.ndarray:
        out = np.empty((end - first, case.widths[2]), np.float32)
        plan = attention.plan(tables.step([(row, first, end)]), cache)
        return attention.run(queries[first:end].copy(), latents[first:end].copy(), plan, out)

    step(0, 0, 32)
    first, second = (table.tolist() for table in tables.tables)
    cache.copy_blocks([(first[0], second[0])])
    size = case.block_size
    cache.copy_slots([(first[1] * size + i, second[1] * size + i) for i in range(size)])
    np.testing.assert_array_equal(step(1, 32, 33), step(0, 32, 33))
    assert cache.checksums(first[:2]) == cache.checksums(second[:2])
    data = cache.read_blocks(first)
    assert data.shape[1] == case.cache_spec.block_bytes
    other = CpuKVCache(case.cache_spec, tables.num_blocks)
    other.write_blocks(first, data)
    assert other.checksums(first) == cache.checksums(first)


def test_what_does_not_fit_is_refused() -> None:
    case = Latents()
    weights, rope = case.parameters()
    attention = CpuLatentAttention(case.spec, weights, rope)
    tables = case.tables([4])
    batch = tables.step([(0, 0, 4)])
    ordinary = CpuKVCache(KVCacheSpec(2, 1, 52, 16, "float32"), tables.num_blocks)
    with pytest.raises(UnsupportedInputError, match="needs a cache of"):
        attention.plan(batch, ordinary)
    latent = CpuKVCache(case.cache_spec, tables.num_blocks)
    other = Case(num_heads=4, num_kv_heads=1, head_dim=52)
    with pytest.raises(UnsupportedInputError, match="needs a cache of"):
        CpuAttention(other.spec).plan(batch, latent)
    plan = attention.plan(batch, latent)
    with pytest.raises(UnsupportedInputError, match="queries, latents and out must be"):
        attention.run(*(np.empty((4, 8), np.float32),) * 2, plan, np.empty((4, 72), np.float32))
    with pytest.raises(UnsupportedInputError, match="rope tables"):
        CpuLatentAttention(case.spec, weights, (rope[0][:, 1:], rope[1][:, 1:]))
    with pytest.raises(UnsupportedInputError, match="weights of heads"):
        CpuLatentAttention(replace(case.spec, key_dim=21), weights, rope)
    with pytest.raises(ConfigError, match="int4 needs keys and values apart"):
        replace(case, dtype="int4").cache_spec  # noqa: B018
