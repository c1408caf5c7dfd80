"""KV blocks as bytes: what was read of some and written to others is the same content."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.model.kv_cache_spec import KV_DTYPE_BITS, KVCacheSpec
from quire.kernels.backend import KVCache
from quire.kernels.registry import create_backend


def filled(device: str, dtype: str, seed: int) -> KVCache:
    """A cache of seven blocks of random bytes, scales included."""
    if device == "reference":
        pytest.importorskip("torch")
    spec = KVCacheSpec(num_layers=3, num_kv_heads=2, head_dim=32, block_size=5, dtype=dtype)
    cache = create_backend(device, threads=2).kv_cache(spec, 7)
    shape = 7, spec.block_bytes
    data = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    cache.write_blocks(list(range(7)), data)
    assert np.array_equal(cache.read_blocks(list(range(7))), data)
    return cache


@pytest.mark.parametrize("dtype", KV_DTYPE_BITS)
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_content_moves_between_blocks_and_caches(device: str, dtype: str) -> None:
    one, two = filled(device, dtype, 1), filled(device, dtype, 2)
    source, untouched = one.checksums([1, 4, 6]), two.checksums([0, 1, 2, 4])
    assert len({*source, *two.checksums(range(7))}) == 10
    two.write_blocks([5, 3, 6], one.read_blocks([1, 4, 6]))
    assert two.checksums([5, 3, 6]) == source
    assert two.checksums([0, 1, 2, 4]) == untouched
    assert one.checksums([1, 4, 6]) == source
    one.write_blocks([2, 2], one.read_blocks([1, 4]))
    assert one.checksums([2]) == source[1:2], "the last one counts"
    assert len(one.read_blocks([])) == 0


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_copied_block_is_read_as_its_source(dtype: str) -> None:
    cache = filled("cpu", dtype, 3)
    cache.copy_blocks([(1, 2)])
    one, two = cache.read_blocks([1, 2])
    assert np.array_equal(one, two)


def test_ids_and_sizes_are_checked() -> None:
    cache = filled("cpu", "bfloat16", 1)
    data = cache.read_blocks([1, 2])
    for block_id in (-1, 7):
        with pytest.raises(ValueError, match="inside the cache"):
            cache.read_blocks([block_id])
        with pytest.raises(ValueError, match="inside the cache"):
            cache.write_blocks([block_id], data)
    with pytest.raises(ValueError, match="buffer must have at least"):
        cache.write_blocks([1, 2, 3], data)
