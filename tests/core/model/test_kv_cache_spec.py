"""The KV bytes of named models, against a table computed by hand."""

from __future__ import annotations

import pytest

from quire.core.errors import ConfigError
from quire.core.model.kv_cache_spec import KVCacheSpec

# layers, KV heads, head_dim, bytes per token, GB at 4,096 tokens, GB x 32 sequences
TABLE = {
    "Llama-2 7B": (32, 32, 128, 524_288, 2.147, 68.7),
    "Llama-2 13B": (40, 40, 128, 819_200, 3.355, 107.4),
    "Llama-3.1 70B": (80, 8, 128, 327_680, 1.342, 42.95),
    "Llama-3.1 405B": (126, 8, 128, 516_096, 2.114, 67.65),
    "Mixtral 8x7B": (32, 8, 128, 131_072, 0.537, 17.18),
    "Llama-3.2 1B": (16, 8, 64, 32_768, 0.134, 4.29),
    "GPT-3 175B": (96, 96, 128, 4_718_592, 19.33, 618.5),
    "70B without GQA": (80, 64, 128, 2_621_440, 10.74, 343.6),
}


@pytest.mark.parametrize("model", TABLE)
def test_bytes_per_token_and_sequence(model):
    layers, kv_heads, head_dim, token_bytes, one, thirty_two = TABLE[model]
    spec = KVCacheSpec(layers, kv_heads, head_dim, 16, "bfloat16")
    assert spec.token_bytes == token_bytes
    sequence_bytes = spec.num_blocks(4096) * spec.block_bytes
    assert sequence_bytes == 4096 * token_bytes
    assert sequence_bytes / 1e9 == pytest.approx(one, rel=1e-2 if one < 0.5 else 4e-4)
    assert 32 * sequence_bytes / 1e9 == pytest.approx(thirty_two, rel=2e-3)


def test_latents_are_one_row_of_a_token():
    """DeepSeek V3: 512 elements of a latent and 64 that turn, in each of 61 layers."""
    spec = KVCacheSpec(61, 1, 512 + 64, 16, "bfloat16", is_latent=True)
    assert spec.token_bytes == 61 * 576 * 2 == 70_272
    assert spec.block_bytes == 16 * 70_272
    eight = KVCacheSpec(61, 1, 576, 16, "int8", is_latent=True)
    assert eight.token_bytes == 61 * (576 + 2)
    with pytest.raises(ConfigError, match="int4 needs keys and values apart"):
        KVCacheSpec(61, 1, 576, 16, "int4", is_latent=True)


@pytest.mark.parametrize(
    ("num_tokens", "num_blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (40, 3), (70, 5)]
)
def test_blocks_of_a_sequence(num_tokens, num_blocks):
    assert KVCacheSpec(1, 1, 1, 16, "float32").num_blocks(num_tokens) == num_blocks


@pytest.mark.parametrize(("dtype", "scale_bytes"), [("fp8_e4m3", 0), ("int8", 2)])
def test_8_bits_take_half_the_bytes_of_16(dtype, scale_bytes):
    """1.34 GB become 0.67; int8 has a scale besides for each head of K and of V."""
    wide, narrow = (KVCacheSpec(80, 8, 128, 16, d) for d in ("bfloat16", dtype))
    assert 2 * narrow.token_element_bytes == wide.token_bytes
    assert narrow.token_scale_bytes == 2 * 80 * 8 * scale_bytes
    assert 2 * narrow.block_bytes == wide.block_bytes + 2 * 16 * narrow.token_scale_bytes


def test_4_bits_take_5_of_16_with_scales_and_minima():
    """Of 32 elements 16 bytes of codes, 2 of scale, 2 of minimum."""
    wide, narrow = (KVCacheSpec(80, 8, 128, 16, d) for d in ("bfloat16", "int4"))
    assert narrow.head_scales == 8
    assert (narrow.token_element_bytes, narrow.token_scale_bytes) == (81_920, 20_480)
    assert 16 * narrow.block_bytes == 5 * wide.block_bytes
    for head_dim in (16, 80, 100):
        with pytest.raises(ConfigError, match=f"multiple of 32 elements; got {head_dim}. Take"):
            KVCacheSpec(1, 1, head_dim, 16, "int4")


def test_float32_takes_twice_the_bytes():
    spec = KVCacheSpec(16, 8, 64, 16, "float32")
    assert spec.block_bytes == 2 * KVCacheSpec(16, 8, 64, 16, "float16").block_bytes == 1_048_576
