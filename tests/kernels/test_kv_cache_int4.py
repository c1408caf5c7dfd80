"""K and V in 4 bits: what is stored equals the reference's codes, what is read is their value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from quire.kernels.cpu.attention import CpuAttention, CpuKVCache
from quire.kernels.cpu.native import native
from quire.kernels.reference.kv_cache import (
    ReferenceKVCache,
    dequantize_int4,
    quantize_int4,
    rotate_by_hadamard,
)
from tests.kernels.attention_cases import Case, Tables
from tests.kernels.attention_runs import (
    attend,
    random_qkv,
    read_a_copied_block,
    run_cpu,
    run_reference,
)

pytestmark = pytest.mark.kernels("rope_and_cache", "paged_attention")

HEAD_DIMS = [32, 64, 96, 128, 160]
LENS = [1, 17, 256, 300]
STEPS = [
    [(1, 0, 8), (2, 0, 128), (3, 0, 150)],
    [(0, 0, 1), (1, 8, 17), (2, 128, 256), (3, 150, 300)],
]
#: One token, its own only context: the output is the value that the cache holds.
ALONE = Case(num_heads=1, num_kv_heads=1, dtype="int4")


def pairs_of_neighbours(values: np.ndarray) -> np.ndarray:
    """Return V's bytes (..., H / 2), whose pairs are elements i and i + 16 of 32, as K's are."""
    groups = values.reshape(*values.shape[:-1], -1, 16)
    codes = np.concatenate([groups & 15, groups >> 4], -1)
    return (codes[..., ::2] | codes[..., 1::2] << 4).reshape(values.shape)


def stored(case: Case, rows: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Run a prompt of ``rows`` on the CPU.

    Returns:
        Of K and of V: pairs of codes (T, H / 2) and scales (T, 2 H / 32) as bits of bfloat16; and
        the outputs (T, H).
    """
    count, half = len(rows), case.head_dim // 2
    tables = Tables(case, [count])
    cache = CpuKVCache(case.cache_spec, tables.num_blocks)
    batch = tables.step([(0, 0, count)])
    out = np.empty((count, case.head_dim), np.float32)
    attend(CpuAttention(case.spec, **case.parameters()), rows.copy(), batch, cache, out)
    blocks = cache.native.memory.reshape(tables.num_blocks, 2, 2, -1)[:, 1]
    keys = blocks[:, 0].reshape(-1, half, 16).transpose(0, 2, 1)
    values = pairs_of_neighbours(blocks[:, 1].reshape(-1, 16, half))
    scales = cache.native.scales.view(np.uint16).reshape(tables.num_blocks, 2, 2, -1, 16)[:, 1]
    slots = batch.slot_mapping
    codes = [x.reshape(-1, half)[slots] for x in (keys, values)]
    kept = [scales[:, i].transpose(0, 2, 1).reshape(-1, half // 8)[slots] for i in (0, 1)]
    return codes, kept, out


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_codes_and_scales_equal_the_references(isa: str, head_dim: int) -> None:
    """Heads of many magnitudes, one sign, zeros, tiny numbers, one that is not finite."""
    case = replace(ALONE, head_dim=head_dim)
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((48, case.width), dtype=np.float32)
    rows *= 10.0 ** rng.integers(-12, 12, (48, 1)).astype(np.float32)
    rows[5], rows[6], rows[9, head_dim:] = 0, -1e-42, -0.0
    rows[10:12] = np.abs(rows[10:12]) * [[1], [-1]]
    rows[7, 2 * head_dim] = np.inf
    rows[8, -1], rows[8, -2] = 3e38, -3e38  # finite, but further apart than floats go
    codes, scales, out = stored(case, rows)
    for which in (0, 1):
        x = torch.from_numpy(rows[:, (1 + which) * head_dim :][:, :head_dim].copy())
        x = rotate_by_hadamard(x) if which == 0 else x
        want_codes, want_scales = quantize_int4(x)
        finite = ~want_scales.isnan().any(1).numpy()
        assert (~finite).nonzero()[0].tolist() == ([] if which == 0 else [7, 8])
        np.testing.assert_array_equal(codes[which], want_codes.numpy())
        bits = want_scales.view(torch.int16).numpy().view(np.uint16)
        np.testing.assert_array_equal(scales[which][finite], bits[finite])
        assert (scales[which][~finite] & 0x7FFF > 0x7F80).any(1).all()
        wide = want_scales.float()
        error = (dequantize_int4(want_codes, wide) - x).abs().unflatten(1, (-1, 32)).amax(-1)
        step, low = wide.unflatten(1, (-1, 2)).unbind(-1)
        # Half a step, and the rounding of differences of large numbers.
        bound = step / 2 + (low.abs() + 15 * step) * 2.0**-22
        assert (error <= bound)[torch.from_numpy(finite)].all()
    assert np.isnan(out[8:, -32:]).all()
    assert np.isfinite(out[:7]).all()


def test_every_code_is_read_as_its_value(isa: str) -> None:
    """Scale times code plus minimum, one rounding; each group has its own."""
    case = replace(ALONE, head_dim=64)
    cache = CpuKVCache(case.cache_spec, 2)
    pairs = cache.native.memory.reshape(2, 2, 2, -1)[1, 1, 1]
    scales = cache.native.scales.view(np.uint16).reshape(2, 2, 2, 4, 16)[1, 1, 1]
    scales[:, 0] = 0x3F81, 0xBFC0, 0x4049, 0x3E00  # 1.0078125, -1.5, 3.140625, 0.125
    for first in range(0, 256, 32):
        pairs[:32] = np.arange(first, first + 32)
        batch = Tables(case, [1]).step([(0, 0, 1)])
        batch.slot_mapping[:] = -1
        out = np.empty((1, 64), np.float32)
        rows = np.zeros((1, case.width), np.float32)
        attend(CpuAttention(case.spec, **case.parameters()), rows, batch, cache, out)
        halves = np.arange(first, first + 32).reshape(2, 16)
        codes = np.concatenate([halves & 15, halves >> 4], 1).astype(np.float32)
        want = codes * [[1.0078125], [3.140625]] + [[-1.5], [0.125]]
        np.testing.assert_array_equal(out[0], want.astype(np.float32).reshape(-1))


@pytest.mark.parametrize("block_size", [16, 3, 32])
@pytest.mark.parametrize(
    "case",
    [
        Case(),
        Case(num_heads=7, num_kv_heads=1, head_dim=96),
        Case(num_heads=6, num_kv_heads=2, head_dim=128, window=40),
        Case(num_heads=2, num_kv_heads=2, head_dim=64, rotary_dim=64, qk_norm="rms_of_heads"),
    ],
    ids=["gqa", "group of 7", "window", "rope"],
)
def test_equals_the_reference(isa: str, case: Case, block_size: int) -> None:
    """Both hold the same values: queries are turned here, keys are turned back there."""
    case = replace(case, dtype="int4", block_size=block_size)
    tables, qkv = Tables(case, LENS), random_qkv(case, LENS)
    ours = run_cpu(case, tables, qkv, STEPS)
    exact = run_reference(replace(case, dtype="float32"), tables, qkv, STEPS)
    for got, want, true in zip(ours, run_reference(case, tables, qkv, STEPS), exact, strict=True):
        if not case.rotary_dim:
            np.testing.assert_allclose(got, want, atol=1e-5)
        # The last bit of a rotated key may differ, and with it a code: a step of one element.
        np.testing.assert_allclose(got, want, atol=0.02)
        assert np.abs(got - true).mean() < 0.1


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_the_rotation_is_its_own_inverse_and_keeps_products(head_dim: int) -> None:
    q, k = torch.randn(2, 40, head_dim)
    turned = rotate_by_hadamard(k)
    torch.testing.assert_close(rotate_by_hadamard(turned), k)
    torch.testing.assert_close(rotate_by_hadamard(q) @ turned.T, q @ k.T, rtol=1e-4, atol=1e-4)
    size = head_dim & -head_dim
    spread = rotate_by_hadamard(torch.eye(head_dim))[0]
    assert (spread[:size].abs() == spread[0]).all() and not spread[size:].any()


def test_the_rotation_pays_for_keys_with_a_large_channel() -> None:
    """As rotary pairs of low frequency have one: a group's scale is then that channel's."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 64, 64)
    k[:, [5, 40]] += 20

    def error(turn: bool) -> float:
        codes, scales = quantize_int4(rotate_by_hadamard(k) if turn else k)
        kept = dequantize_int4(codes, scales.float())
        kept = rotate_by_hadamard(kept) if turn else kept
        scores, exact = (x - x.mean(1, keepdim=True) for x in (q @ kept.T, q @ k.T))
        return float((scores - exact).norm() / exact.norm())

    assert error(True) < 0.6 * error(False)


def test_a_token_takes_5_bits_an_element() -> None:
    case = Case(num_heads=8, num_kv_heads=2, head_dim=64, dtype="int4")
    spec, cache = case.cache_spec, CpuKVCache(case.cache_spec, 7)
    elements = 7 * spec.block_size * 2 * spec.num_layers * 2 * 64
    assert cache.native.memory.nbytes == elements // 2
    assert cache.native.scales.nbytes == elements // 8
    assert cache.nbytes == 7 * spec.block_bytes
    with pytest.raises(ValueError, match="whole groups"):
        native.KVCache(1, 2, 1, 40, 16, 5, False)


def test_a_copied_block_is_read_like_the_first(isa: str) -> None:
    """Scales and minima go along."""
    cache, tables, outs = read_a_copied_block(Case(block_size=4, dtype="int4"))
    np.testing.assert_array_equal(*outs)
    ids = tables.tables[:, 0].tolist()
    first, copy = cache.checksums(ids)
    assert first == copy
    cache.native.scales[:] ^= 1
    assert cache.checksums(ids)[0] != first
    reference = ReferenceKVCache(Case(block_size=4, dtype="int4").cache_spec, 3)
    keys = torch.randn(1, 2, 32)
    reference.write(0, torch.tensor([5]), keys, keys)
    reference.copy_slots([(5, 10)])
    read = reference.read(0, torch.tensor([5, 10]))
    assert all(torch.equal(x[0], x[1]) for x in read)
    assert (read[0][0] - keys[0]).abs().max() < 0.5


def test_a_slot_of_a_block_is_written_alone(isa: str) -> None:
    """A byte holds two elements of one token, so tokens of a block can be stored side by side."""
    case = replace(ALONE, head_dim=64)
    qkv = random_qkv(case, [16])[0]
    tables = Tables(case, [16])
    caches = [CpuKVCache(case.cache_spec, tables.num_blocks) for _ in range(2)]
    attention = CpuAttention(case.spec, **case.parameters())
    for cache, order in zip(caches, (range(16), reversed(range(16))), strict=True):
        for at in order:
            batch = tables.step([(0, at, at + 1)])
            attend(attention, qkv[at : at + 1].copy(), batch, cache, np.empty((1, 64), np.float32))
    assert caches[0].checksums([1]) == caches[1].checksums([1])
