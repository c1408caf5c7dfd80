"""Checksums of KV blocks: native code against XXH64 written out, and any byte changes them."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.kernels.registry import create_backend

MASK = 2**64 - 1
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & MASK


def lane_round(lane: int, value: int) -> int:
    return rotate((lane + value * P2) & MASK, 31) * P1 & MASK


def xxh64(data: bytes) -> int:
    """The specification, seed 0."""
    total, value = len(data), P5
    if total >= 32:
        lanes = [(P1 + P2) & MASK, P2, 0, -P1 & MASK]
        while len(data) >= 32:
            words = [int.from_bytes(data[8 * i : 8 * i + 8], "little") for i in range(4)]
            lanes = [lane_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
            data = data[32:]
        value = sum(rotate(x, n) for x, n in zip(lanes, (1, 7, 12, 18), strict=True)) & MASK
        for lane in lanes:
            value = ((value ^ lane_round(0, lane)) * P1 + P4) & MASK
    value = (value + total) & MASK
    while len(data) >= 8:
        word = lane_round(0, int.from_bytes(data[:8], "little"))
        value, data = (rotate(value ^ word, 27) * P1 + P4) & MASK, data[8:]
    if len(data) >= 4:
        word = int.from_bytes(data[:4], "little") * P1 & MASK
        value, data = (rotate(value ^ word, 23) * P2 + P3) & MASK, data[4:]
    for byte in data:
        value = rotate(value ^ (byte * P5 & MASK), 11) * P1 & MASK
    value = (value ^ value >> 33) * P2 & MASK
    value = (value ^ value >> 29) * P3 & MASK
    return value ^ value >> 32


def test_the_oracle_knows_the_published_values():
    assert xxh64(b"") == 0xEF46DB3751D8E999
    assert xxh64(b"a") == 0xD24EC4F1A98C6E5B
    assert xxh64(b"abc") == 0x44BC2CF5AD770999


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("num_layers", "num_kv_heads", "head_dim", "block_size"),
    [(1, 1, 1, 1), (3, 1, 3, 3), (5, 2, 16, 16), (2, 3, 5, 7)],
)
def test_native_checksums_are_those_of_the_bytes(
    dtype, num_layers, num_kv_heads, head_dim, block_size
):
    spec = KVCacheSpec(
        num_layers=num_layers, num_kv_heads=num_kv_heads, head_dim=head_dim,
        block_size=block_size, dtype=dtype,
    )  # fmt: skip
    cache = create_backend("cpu", threads=2).kv_cache(spec, 6)
    memory = np.asarray(cache.native.memory)
    memory[:] = np.random.default_rng(1).integers(0, 256, len(memory), np.uint8)
    blocks = memory.reshape(6, num_layers, -1)

    def expected(block: int) -> int:
        parts = [xxh64(blocks[block, layer].tobytes()) for layer in range(num_layers)]
        return xxh64(b"".join(part.to_bytes(8, "little") for part in parts))

    asked = [5, 0, 3, 3]
    assert cache.checksums(asked) == [expected(block) for block in asked]
    assert cache.checksums([]) == []
    with pytest.raises(ValueError, match="inside the cache"):
        cache.checksums([6])


def test_every_byte_of_a_block_counts_and_no_other():
    spec = KVCacheSpec(num_layers=2, num_kv_heads=1, head_dim=4, block_size=2, dtype="float32")
    cache = create_backend("cpu", threads=1).kv_cache(spec, 3)
    memory = np.asarray(cache.native.memory)
    before = cache.checksums([0, 1, 2])
    blocks = memory.reshape(3, 2, -1)
    for layer in range(2):
        for byte in range(blocks.shape[2]):
            blocks[1, layer, byte] ^= 1 << byte % 8
            now = cache.checksums([0, 1, 2])
            assert now[1] != before[1] and now[::2] == before[::2]
            blocks[1, layer, byte] ^= 1 << byte % 8
    assert cache.checksums([0, 1, 2]) == before


def test_the_reference_has_them_too():
    pytest.importorskip("torch")
    spec = KVCacheSpec(num_layers=2, num_kv_heads=1, head_dim=4, block_size=2, dtype="bfloat16")
    cache = create_backend("reference", threads=1).kv_cache(spec, 3)
    cache.blocks[:] = 1.0
    one, two = cache.checksums([1, 2])
    assert one == two
    cache.blocks[1, 0, 2, 1, 0, 3] = 2.0
    assert cache.checksums([1])[0] == one != cache.checksums([2])[0]
