"""Paged attention: right against the reference, and the same bits however the work is cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from quire.core.errors import UnsupportedInputError
from quire.kernels.cpu.attention import CpuAttention, CpuKVCache
from quire.kernels.reference.attention import ReferenceAttention
from quire.kernels.reference.kv_cache import ReferenceKVCache
from tests.kernels.attention_cases import SHAPES, Case, Tables
from tests.kernels.attention_runs import (
    Parts,
    attend,
    random_qkv,
    read_a_copied_block,
    rows_of,
    run_cpu,
    run_reference,
)
from tests.kernels.conftest import ALL_ISAS
from tests.kernels.paired_attention import PAIR_ISAS
from tests.kernels.torch_copies import tensors
from tests.sizes import sized

torch.set_num_threads(1)

ISAS = ALL_ISAS
pytestmark = pytest.mark.kernels("rope_and_cache", "paged_attention")
LENS = [1, 17, 256, 300]


def whole(lens: list[int]) -> list[Parts]:
    return [[(row, 0, length) for row, length in enumerate(lens)]]


def halves(lens: list[int]) -> list[Parts]:
    first = [(row, 0, length // 2) for row, length in enumerate(lens) if length > 1]
    second = [(row, length // 2, length) for row, length in enumerate(lens)]
    return [first, second]


@pytest.mark.parametrize(
    ("shape", "block_size"),
    [
        *((shape, 16) for shape in SHAPES),
        *((shape, size) for shape in ("gqa", "window") for size in (1, 5, 32, 256)),
    ],
)
def test_equals_the_reference(isa: str, shape: str, block_size: int) -> None:
    """Ragged lengths, a chunk after cached tokens, shuffled blocks, NaN in unwritten slots."""
    case = replace(SHAPES[shape], block_size=block_size)
    tables, qkv = Tables(case, LENS), random_qkv(case, LENS)
    ours = run_cpu(case, tables, qkv, halves(LENS))
    for got, want in zip(ours, run_reference(case, tables, qkv, halves(LENS)), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("block_size", [16, 3])
def test_narrow_caches_equal_the_reference(isa: str, dtype: str, block_size: int) -> None:
    """Both round K and V to the same values, so only the order of sums is left to differ.

    Where pairs of bfloat16 are multiplied, queries and weights are rounded as K and V are: to the
    same number of bits, so that they add about the error that K and V bring, which is checked below
    (and every rounding in test_attention_pairs.py).
    """
    case = Case(dtype=dtype, block_size=block_size)
    tables, qkv = Tables(case, LENS), random_qkv(case, LENS)
    ours = run_cpu(case, tables, qkv, halves(LENS))
    atol = 1e-2 if dtype == "bfloat16" and isa in PAIR_ISAS else 1e-5
    for got, want in zip(ours, run_reference(case, tables, qkv, halves(LENS)), strict=True):
        np.testing.assert_allclose(got, want, atol=atol)
    exact = run_reference(replace(case, dtype="float32"), tables, qkv, halves(LENS))
    for got, want in zip(ours, exact, strict=True):
        np.testing.assert_allclose(got, want, atol=2e-2)


def test_qkv_holds_the_rotated_rows(isa: str) -> None:
    case = SHAPES["partial rope"]
    tables, qkv = Tables(case, [9]), random_qkv(case, [9])
    cache = CpuKVCache(case.cache_spec, tables.num_blocks)
    rows = rows_of(qkv, [(0, 0, 9)])
    attention = CpuAttention(case.spec, **case.parameters())
    attend(attention, rows, tables.step([(0, 0, 9)]), cache, np.empty((9, 160), np.float32))
    heads = rows.reshape(9, 8, 40)
    before = qkv[0].reshape(9, 8, 40)
    cosines, sines = case.parameters()["rope"]
    turned = before[:, :6, :6] * cosines[:9, None] - before[:, :6, 6:12] * sines[:9, None]
    np.testing.assert_allclose(heads[:, :6, :6], turned, atol=1e-6)
    np.testing.assert_array_equal(heads[:, :, 12:], before[:, :, 12:])
    np.testing.assert_array_equal(heads[:, 6:], before[:, 6:])


def split_everywhere(length: int, points: range) -> list[list[Parts]]:
    return [[[(0, 0, at)], [(0, at, length)]] for at in points]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        *((shape, "bfloat16") for shape in ("gqa", "mha", "window", "long window", "odd head")),
        *(("gqa", dtype) for dtype in ("float32", "float16", "fp8_e4m3", "int8", "int4")),
        ("odd head", "int8"),
        *((shape, dtype) for shape in ("sinks", "soft cap") for dtype in ("bfloat16", "int8")),
        *((shape, "int4") for shape in ("mha", "head 128", "long window")),
    ],
)
def test_bits_do_not_depend_on_chunks_batch_blocks_or_threads(
    isa: str, threads: int, shape: str, dtype: str
) -> None:
    """A 17-token prompt at every split point, and one of three pieces at some."""
    case = replace(SHAPES[shape], dtype=dtype)
    lens = [17, 620, 300]
    qkv = random_qkv(case, lens)
    want = run_cpu(case, Tables(case, lens), qkv, whole(lens))
    points = range(33, 620, sized(194, 97))
    splits = {0: split_everywhere(17, range(1, 17)), 1: split_everywhere(620, points)}
    splits[0].append([[(0, p, p + 1)] for p in range(17)])
    splits[1].append([[(1, 0, 600)], *([(1, p, p + 1)] for p in range(600, 620))])
    for row, ways in splits.items():
        for seed, way in enumerate(ways):
            steps = [[(row, first, end) for _, first, end in parts] for parts in way]
            got = run_cpu(case, Tables(case, lens, seed), qkv, steps)
            np.testing.assert_array_equal(got[row], want[row])
    for block_size in (1, 8, 32):
        other = replace(case, block_size=block_size)
        steps = [[(1, 0, 500)], [(2, 0, 300), (1, 500, 620), (0, 0, 17)]]
        got = run_cpu(other, Tables(other, lens, block_size), qkv, steps)
        for mine, first in zip(got, want, strict=True):
            np.testing.assert_array_equal(mine, first)
    batch = [[(1, 0, 619), (2, 0, 299)], [(2, 299, 300), (0, 0, 17), (1, 619, 620)]]
    for mine, first in zip(run_cpu(case, Tables(case, lens), qkv, batch), want, strict=True):
        np.testing.assert_array_equal(mine, first)


@pytest.mark.parametrize(("dtype", "atol"), [("float16", 1e-5), ("bfloat16", 1e-3)])
def test_a_long_decode_split_over_pieces_gives_the_prefills_bits(
    threads: int, dtype: str, atol: float
) -> None:
    """One token after 3,000 runs piece by piece on all threads; a prefill runs tile by tile."""
    case = Case(num_heads=4, num_kv_heads=1, head_dim=64, dtype=dtype)
    tables, qkv = Tables(case, [3001]), random_qkv(case, [3001])
    prefill = run_cpu(case, tables, qkv, [[(0, 0, 3001)]])[0]
    decode = run_cpu(case, tables, qkv, [[(0, 0, 3000)], [(0, 3000, 3001)]])[0]
    np.testing.assert_array_equal(decode, prefill)
    reference = run_reference(case, tables, qkv, [[(0, 0, 3000)], [(0, 3000, 3001)]])[0]
    np.testing.assert_allclose(decode[-1], reference[-1], atol=atol)


def test_large_scores_do_not_overflow(isa: str) -> None:
    case = Case(num_heads=2)
    tables, qkv = Tables(case, [300]), random_qkv(case, [300])
    qkv[0] *= 100
    got = run_cpu(case, tables, qkv, whole([300]))[0]
    want = run_reference(case, tables, qkv, whole([300]))[0]
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-2)


def test_an_empty_step_and_requests_without_queries(isa: str) -> None:
    case = Case()
    tables = Tables(case, [4, 5])
    cache = CpuKVCache(case.cache_spec, tables.num_blocks)
    attention = CpuAttention(case.spec, **case.parameters())
    out = np.empty((0, 128), np.float32)
    for parts in ([], [(0, 4, 4), (1, 5, 5)]):
        attend(attention, np.empty((0, case.width), np.float32), tables.step(parts), cache, out)


def test_slot_minus_one_writes_nothing(isa: str) -> None:
    case = Case()
    tables, qkv = Tables(case, [3]), random_qkv(case, [3])
    cache = CpuKVCache(case.cache_spec, tables.num_blocks)
    attention = CpuAttention(case.spec, **case.parameters())
    batch = tables.step([(0, 0, 3)])
    batch.slot_mapping[:] = -1
    attend(attention, qkv[0], batch, cache, np.empty((3, 128), np.float32))
    assert not cache.native.memory.any()


def test_copy_blocks_copies_in_order_in_every_layer() -> None:
    case = Case(dtype="bfloat16")
    cache = CpuKVCache(case.cache_spec, 5)
    assert cache.nbytes == 5 * case.cache_spec.block_bytes
    blocks = cache.native.memory.reshape(5, 2, -1)
    blocks[:] = np.arange(10, dtype=np.uint8).reshape(5, 2, 1)
    cache.copy_blocks([(3, 1), (1, 2)])
    np.testing.assert_array_equal(blocks[:, :, 0].T, [[0, 6, 6, 6, 8], [1, 7, 7, 7, 9]])
    cache.copy_blocks([])
    with pytest.raises(ValueError, match="inside the cache"):
        cache.copy_blocks([(0, 5)])


def test_a_copied_block_is_read_like_the_first(isa: str) -> None:
    """Copy on write: after the copy, a table that names the copy gives the same bits."""
    *_, outs = read_a_copied_block(Case(block_size=4))
    np.testing.assert_array_equal(*outs)


def corrupt(name: str, index: object, value: int) -> object:
    def change(batch: object) -> None:
        getattr(batch, name)[index] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        corrupt("slot_mapping", 0, 1 << 40),
        corrupt("slot_mapping", 0, -2),
        corrupt("block_tables", (0, 0), 99),
        corrupt("block_tables", (0, 0), -1),
        corrupt("seq_lens", 0, 9999),
        corrupt("seq_lens", 0, 2),
        corrupt("positions", 0, 5000),
        corrupt("query_start_loc", 1, 2),
    ],
)
def test_a_batch_that_points_outside_is_refused(change: object) -> None:
    case = SHAPES["rope"]
    tables, qkv = Tables(case, [3]), random_qkv(case, [3])
    batch = tables.step([(0, 0, 3)])
    change(batch)
    cache = CpuKVCache(case.cache_spec, tables.num_blocks)
    attention = CpuAttention(case.spec, **case.parameters())
    with pytest.raises(UnsupportedInputError, match="inside the cache"):
        attend(attention, qkv[0], batch, cache, np.empty((3, 128), np.float32))


def test_wrong_shapes_and_caches_are_refused() -> None:
    case = Case()
    tables, qkv = Tables(case, [3]), random_qkv(case, [3])
    batch, out = tables.step([(0, 0, 3)]), np.empty((3, 128), np.float32)
    attention = CpuAttention(case.spec, **case.parameters())
    cache = CpuKVCache(case.cache_spec, tables.num_blocks)
    with pytest.raises(UnsupportedInputError, match="qkv and out must be"):
        attend(attention, qkv[0][:, :-1].copy(), batch, cache, out)
    with pytest.raises(UnsupportedInputError, match="step of 3 tokens"):
        attend(attention, qkv[0][:2].copy(), batch, cache, out[:2])
    with pytest.raises(ValueError, match="contiguous"):
        attend(attention, np.concatenate([qkv[0]] * 2, axis=1)[:, : case.width], batch, cache, out)
    with pytest.raises(UnsupportedInputError, match=r"positions \(2,\)"):
        attention.plan(replace(batch, slot_mapping=batch.slot_mapping[:2]), cache)
    other = CpuKVCache(replace(case, head_dim=16).cache_spec, tables.num_blocks)
    with pytest.raises(UnsupportedInputError, match="needs a cache"):
        attend(attention, qkv[0], batch, other, out)
    with pytest.raises(UnsupportedInputError, match="multiple of num_kv_heads"):
        CpuAttention(replace(case, num_heads=3).spec)


SECTIONED = Case(head_dim=40, rotary_dim=32, sections=(4, 7, 5), qk_norm="rms_of_heads")


def run_sections(case: Case, positions: np.ndarray) -> list[np.ndarray]:
    """Two requests' rows after the rotation and their outputs, on both backends."""
    lens = [9, 6]
    tables, qkv = Tables(case, lens), random_qkv(case, lens)
    parts = [(0, 0, 9), (1, 0, 6)]
    batch = replace(tables.step(parts), positions=positions)
    width = case.num_heads * case.head_dim
    ours, out = rows_of(qkv, parts), np.empty((15, width), np.float32)
    cache = CpuKVCache(case.cache_spec, tables.num_blocks)
    attend(CpuAttention(case.spec, **case.parameters()), ours, batch, cache, out)
    theirs, want = tensors(rows_of(qkv, parts)), torch.empty(15, width)
    oracle = ReferenceAttention(case.spec, **tensors(case.parameters()))
    reference_cache = ReferenceKVCache(case.cache_spec, tables.num_blocks)
    attend(oracle, theirs, tensors(batch), reference_cache, want)
    return [ours, out, theirs.numpy(), want.numpy()]


def test_equal_sections_give_the_bits_of_one_position(isa: str) -> None:
    positions = np.concatenate([np.arange(9), np.arange(6)]).astype(np.int32)
    plain = run_sections(replace(SECTIONED, sections=()), positions)
    sectioned = run_sections(SECTIONED, np.stack([positions] * 3))
    for got, want in zip(sectioned, plain, strict=True):
        np.testing.assert_array_equal(got, want)


def test_each_section_turns_by_its_own_position(isa: str) -> None:
    """Against the reference, and the reference against the formula of Qwen2-VL."""
    positions = np.random.default_rng(0).integers(0, 300, (3, 15)).astype(np.int32)
    ours, out, theirs, want = run_sections(SECTIONED, positions)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    np.testing.assert_allclose(out, want, atol=1e-5)
    plain = replace(SECTIONED, qk_norm="")
    rotated = torch.from_numpy(run_sections(plain, positions)[2]).view(15, 8, 40)[:, :6, :32]
    before = torch.from_numpy(rows_of(random_qkv(plain, [9, 6]), [(0, 0, 9), (1, 0, 6)]))
    q = before.view(15, 8, 40)[:, :6, :32]
    # transformers' apply_multimodal_rotary_pos_emb, for (tokens, heads, rotary dim).
    cos, sin = (
        torch.cat([torch.from_numpy(table)[torch.from_numpy(positions).long()]] * 2, -1)
        for table in plain.parameters()["rope"]
    )
    cos, sin = (
        torch.cat([part[i % 3] for i, part in enumerate(x.split(plain.sections * 2, -1))], -1)
        for x in (cos, sin)
    )
    cos, sin = cos[:, None], sin[:, None]
    half_turned = torch.cat([-q[..., 16:], q[..., :16]], -1)
    torch.testing.assert_close(rotated, q * cos + half_turned * sin)


def test_sections_must_fit() -> None:
    tables = Tables(SECTIONED, [3])
    cache = CpuKVCache(SECTIONED.cache_spec, tables.num_blocks)
    attention = CpuAttention(SECTIONED.spec, **SECTIONED.parameters())
    batch = tables.step([(0, 0, 3)])
    batch.positions = np.stack([batch.positions, batch.positions])
    with pytest.raises(UnsupportedInputError, match=r"positions \(3, 3\)"):
        attention.plan(batch, cache)
    for sections in ((4, 7), (20, -4), (16, 1)):
        with pytest.raises(UnsupportedInputError, match="sum to the 16 rotary pairs"):
            CpuAttention(replace(SECTIONED, sections=sections).spec, **SECTIONED.parameters())
    batch = tables.step([(0, 0, 3)])
    batch.positions = np.stack([batch.positions, batch.positions, batch.positions + 4094])
    with pytest.raises(UnsupportedInputError, match="rope tables"):
        rows = np.empty((3, SECTIONED.width), np.float32)
        attend(attention, rows, batch, cache, np.empty((3, 160), np.float32))
