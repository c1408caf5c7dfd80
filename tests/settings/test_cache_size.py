"""The size of the KV cache with a unit, and the settings that it stands for."""

from __future__ import annotations

from typing import Any

import pytest

from quire import EngineArgs
from quire.core.errors import ConfigError
from quire.settings.cache_options import CacheOptions
from quire.settings.cache_size import SIZES
from quire.settings.config import EngineConfig


@pytest.mark.parametrize(
    ("text", "name", "size"),
    [
        ("4GiB", "kv_cache_memory_bytes", 4 * 2**30),
        ("4G", "kv_cache_memory_bytes", 4 * 2**30),
        (" 512 MB ", "kv_cache_memory_bytes", 512 * 10**6),
        ("50%", "free_gpu_memory_fraction", 0.5),
        ("12.5 %", "free_gpu_memory_fraction", 0.125),
        ("2000 blocks", "num_gpu_blocks_override", 2000),
        ("2k Blocks", "num_gpu_blocks_override", 2048),
        ("64k tokens", "max_tokens_in_paged_kv_cache", 65536),
        ("1token", "max_tokens_in_paged_kv_cache", 1),
    ],
)
def test_each_unit_is_a_setting(text: str, name: str, size: float) -> None:
    found = CacheOptions(kv_cache_size=text)
    assert found == CacheOptions(**{name: size})
    assert EngineConfig.from_keywords(kv_cache_size=text).cache == found


def test_the_unit_shown_for_each_setting_is_its_own() -> None:
    for name, text in SIZES.items():
        assert getattr(CacheOptions(kv_cache_size=text), name) is not None


@pytest.mark.parametrize(
    "value",
    ["", "4", "0GiB", "0 blocks", "0%", "101%", "1e9%", "1.5 blocks", "many tokens", "4 pages",
     "-4GiB", "%", "GiB", 4, 0.5, True, ["4GiB"]],
)  # fmt: skip
def test_a_size_without_number_or_unit_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="--kv-cache-size must be a number above 0 with its unit"):
        EngineConfig.from_keywords(kv_cache_size=value)


def test_two_sizes_are_refused_and_the_same_twice_is_one() -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_keywords(kv_cache_size="4GiB", num_gpu_blocks_override=9)
    assert str(caught.value) == (
        "[config] --kv-cache-size and --num-gpu-blocks-override must not both be given; got 4GiB "
        "and 9. Leave one out."
    )
    same = EngineConfig.from_keywords(kv_cache_size="4GiB", kv_cache_memory_bytes="4GiB")
    assert same.cache == CacheOptions(kv_cache_memory_bytes=4 * 2**30)


def test_it_goes_with_the_memory_of_all() -> None:
    found = EngineArgs(kv_cache_size="50%", memory="8GiB")
    assert (found.free_gpu_memory_fraction, found.memory) == (0.5, 8 * 2**30)
    assert found.kv_cache_size is None, "one setting holds the size"
