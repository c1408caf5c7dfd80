"""K and V in 8 bits: what is stored and read equals torch's E4M3 and the reference's int8."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from quire.kernels.cpu.attention import CpuAttention, CpuKVCache
from quire.kernels.reference.kv_cache import ReferenceKVCache, quantize_int8
from tests.kernels.attention_cases import Case, Tables
from tests.kernels.attention_runs import (
    attend,
    random_qkv,
    read_a_copied_block,
    run_cpu,
    run_reference,
)

pytestmark = pytest.mark.kernels("rope_and_cache", "paged_attention")

NARROW = ["fp8_e4m3", "int8"]
LENS = [1, 17, 256, 300]
STEPS = [
    [(1, 0, 8), (2, 0, 128), (3, 0, 150)],
    [(0, 0, 1), (1, 8, 17), (2, 128, 256), (3, 150, 300)],
]
#: One KV head whose values are attended to alone: the output is what the cache holds.
ALONE = Case(num_heads=1, num_kv_heads=1, head_dim=64)


def step_alone(case: Case, cache: CpuKVCache, value: np.ndarray, *, write: bool) -> np.ndarray:
    """Run one token with ``value`` as v and finite k in slot 0 of block 1; return what was read.

    Keys equal values except where those are NaN, which would spoil the score and with it all.
    """
    batch = Tables(case, [1]).step([(0, 0, 1)])
    if not write:
        batch.slot_mapping[:] = -1
    qkv = np.concatenate([np.zeros_like(value), np.nan_to_num(value), value])[None].astype(
        np.float32
    )
    out = np.empty((1, case.head_dim), np.float32)
    attend(CpuAttention(case.spec, **case.parameters()), qkv, batch, cache, out)
    return out[0]


@pytest.mark.parametrize("head_dim", [256, 20])
def test_every_code_of_e4m3_is_read_as_its_value(isa: str, head_dim: int) -> None:
    """All 256, the two NaN too; 20 leaves a tail after whole vectors."""
    case = replace(ALONE, head_dim=head_dim, dtype="fp8_e4m3")
    cache = CpuKVCache(case.cache_spec, 2)
    values = cache.native.memory.reshape(2, 2, 2, -1)[1, 1, 1]
    for first in range(0, 256, head_dim):
        codes = (np.arange(first, first + head_dim) % 256).astype(np.uint8)
        values[:head_dim] = codes
        want = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
        got = step_alone(case, cache, np.zeros(head_dim), write=False)
        np.testing.assert_array_equal(got, want)


def stored_e4m3(x: np.ndarray) -> np.ndarray:
    """Return the codes that the CPU's cache holds after a token of ``x``, keys then values."""
    case = replace(ALONE, head_dim=len(x), dtype="fp8_e4m3")
    cache = CpuKVCache(case.cache_spec, 2)
    step_alone(case, cache, x, write=True)
    memory = cache.native.memory.reshape(2, 2, 2, -1)[1, 1]
    return np.stack([memory[0].reshape(-1, 16)[:, 0], memory[1][: len(x)]])


def test_floats_are_rounded_to_the_nearest_e4m3(isa: str) -> None:
    """Values, the points halfway between neighbours and floats next to those; saturating."""
    exact = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    halfway = (exact[1:] + exact[:-1]) / 2
    points = np.concatenate([exact, halfway, [448, 449, 464, 480, 1e9, np.inf, 1e-30, 2**-10]])
    points = points.astype(np.float32)
    nearby = [np.nextafter(points, np.float32(0)), np.nextafter(points, np.float32(np.inf))]
    x = np.concatenate([points, *nearby])
    x = np.concatenate([x, -x])
    want = torch.from_numpy(x.clip(-448, 448)).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    for codes in stored_e4m3(x):
        np.testing.assert_array_equal(codes, want)
    assert np.abs(want.view(np.int8).astype(int) & 0x7F).max() == 0x7E


def test_nan_is_stored_as_nan(isa: str) -> None:
    x = np.ones(19, np.float32)
    x[[0, 17]] = np.nan, -np.nan
    assert (stored_e4m3(x)[1] & 0x7F == 0x7F).nonzero()[0].tolist() == [0, 17]
    for dtype, spoiled in (("fp8_e4m3", [0, 17]), ("int8", list(range(19)))):
        case = replace(ALONE, head_dim=19, dtype=dtype)
        got = step_alone(case, CpuKVCache(case.cache_spec, 2), x, write=True)
        assert np.isnan(got).nonzero()[0].tolist() == spoiled


@pytest.mark.parametrize("head_dim", [64, 20])
def test_int8_codes_and_scales_equal_the_references(isa: str, head_dim: int) -> None:
    """Heads of many magnitudes, zeros, a head of tiny numbers, one that is not finite."""
    case = Case(num_heads=1, num_kv_heads=1, head_dim=head_dim, dtype="int8")
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((48, case.width), dtype=np.float32)
    rows *= 10.0 ** rng.integers(-12, 12, (48, 1)).astype(np.float32)
    rows[5], rows[6], rows[7, 2 * head_dim] = 0, 1e-42, np.inf
    cache = CpuKVCache(case.cache_spec, 4)
    batch = Tables(case, [48]).step([(0, 0, 48)])
    out = np.empty((48, head_dim), np.float32)
    attend(CpuAttention(case.spec, **case.parameters()), rows, batch, cache, out)
    blocks = cache.native.memory.view(np.int8).reshape(4, 2, 2, -1)[:, 1]
    keys = blocks[:, 0].reshape(4, head_dim, 16).transpose(0, 2, 1)
    values = blocks[:, 1].reshape(4, 16, head_dim)
    scales = cache.native.scales.view(np.uint16).reshape(4, 2, 2, 16)[:, 1]
    slots = batch.slot_mapping
    for which, stored in enumerate((keys, values)):
        x = torch.from_numpy(rows[:, (1 + which) * head_dim :][:, :head_dim].copy())
        codes, want = quantize_int8(x)
        finite = x.isfinite().all(1).numpy()
        got = scales[:, which].reshape(-1)[slots]
        np.testing.assert_array_equal(got[finite], want.view(torch.uint16).numpy()[finite])
        assert want.isnan().tolist() == (~finite).tolist()
        got_codes = stored.reshape(-1, head_dim)[slots]
        np.testing.assert_array_equal(got_codes[finite], codes.numpy()[finite])
        step = want.float()[finite, None].numpy()
        error = np.abs(got_codes[finite] * step - x.numpy()[finite])
        assert (error <= step / 2 * (1 + 1e-6)).all()
    assert np.isnan(out[7:]).all()
    assert np.isfinite(out[:7]).all()


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("block_size", [16, 3, 32])
@pytest.mark.parametrize(
    "case",
    [
        Case(),
        Case(num_heads=7, num_kv_heads=1, head_dim=20),
        Case(num_heads=6, num_kv_heads=2, head_dim=128, window=40),
    ],
    ids=["gqa", "odd", "window"],
)
def test_equals_the_reference(isa: str, case: Case, block_size: int, dtype: str) -> None:
    """Both hold the same values, so only the order of sums is left to differ."""
    case = replace(case, dtype=dtype, block_size=block_size)
    tables, qkv = Tables(case, LENS), random_qkv(case, LENS)
    ours = run_cpu(case, tables, qkv, STEPS)
    exact = run_reference(replace(case, dtype="float32"), tables, qkv, STEPS)
    for got, want, true in zip(ours, run_reference(case, tables, qkv, STEPS), exact, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)
        # Half a step of 3 bits of mantissa, of values up to 4; a 127th of the head's largest.
        np.testing.assert_allclose(got, true, atol=0.25 if dtype == "fp8_e4m3" else 0.03)


@pytest.mark.parametrize("dtype", NARROW)
def test_capacity_is_twice_that_of_16_bits(dtype: str) -> None:
    """But for the scales of int8, which lie apart and are counted."""
    case = Case(num_heads=8, num_kv_heads=2, head_dim=64, dtype=dtype)
    spec, wide = case.cache_spec, replace(case, dtype="bfloat16").cache_spec
    assert 2 * spec.token_element_bytes == wide.token_bytes
    cache = CpuKVCache(spec, 7)
    num_tokens = 7 * spec.block_size
    assert cache.native.memory.nbytes == num_tokens * spec.token_element_bytes
    assert cache.native.scales.nbytes == num_tokens * spec.token_scale_bytes
    assert cache.nbytes == 7 * spec.block_bytes
    heads = 2 * spec.num_layers * spec.num_kv_heads
    assert spec.token_scale_bytes == (2 * heads if dtype == "int8" else 0)


@pytest.mark.parametrize("dtype", NARROW)
def test_a_copied_block_is_read_like_the_first(isa: str, dtype: str) -> None:
    """The scales go along; on the reference too."""
    case = Case(block_size=4, dtype=dtype)
    cache, tables, outs = read_a_copied_block(case)
    np.testing.assert_array_equal(*outs)
    ids = tables.tables[:, 0].tolist()
    first, copy = cache.checksums(ids)
    assert first == copy
    if dtype == "int8":
        cache.native.scales[:] ^= 1
        assert cache.checksums(ids)[0] != first
    reference = ReferenceKVCache(case.cache_spec, 3)
    keys = torch.randn(1, 2, 32)
    reference.write(0, torch.tensor([5]), keys, keys)
    reference.copy_blocks([(1, 2)])
    read = reference.read(0, torch.tensor([5, 9]))
    assert torch.equal(read[0][0], read[0][1])
    assert torch.equal(read[1][0], read[0][0])
    assert len(set(reference.checksums([1, 2]))) == 1
