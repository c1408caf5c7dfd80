"""Shapes of well-known models, for calculators that have no checkpoint at hand.

All follow from each model's published ``config.json`` or paper (GPT-3: Brown et al. 2020, table
2.1); tied matrices count once.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.kv_cache_spec import KVCacheSpec


@dataclass(frozen=True, slots=True)
class NamedShape:
    """What memory a model takes, and what its ranks would send: sizes of its matrices.

    ``num_experts`` is 0 for a dense model; of the experts a token uses two.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_parameters: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool = False
    num_experts: int = 0


NAMED_SHAPES: dict[str, NamedShape] = {
    "llama-2-7b": NamedShape(32, 32, 128, 6_738_415_616, 4096, 32, 11008, 32000),
    "llama-2-13b": NamedShape(40, 40, 128, 13_015_864_320, 5120, 40, 13824, 32000),
    "llama-2-70b": NamedShape(80, 8, 128, 68_976_648_192, 8192, 64, 28672, 32000),
    "llama-3.1-8b": NamedShape(32, 8, 128, 8_030_261_248, 4096, 32, 14336, 128256),
    "llama-3.1-70b": NamedShape(80, 8, 128, 70_553_706_496, 8192, 64, 28672, 128256),
    "llama-3.1-405b": NamedShape(126, 8, 128, 405_853_388_800, 16384, 128, 53248, 128256),
    "llama-3.2-1b": NamedShape(16, 8, 64, 1_235_814_400, 2048, 32, 8192, 128256, True),
    "mistral-7b": NamedShape(32, 8, 128, 7_241_732_096, 4096, 32, 14336, 32000),
    "mixtral-8x7b": NamedShape(32, 8, 128, 46_702_792_704, 4096, 32, 14336, 32000, False, 8),
    "qwen3-0.6b": NamedShape(28, 8, 128, 596_049_920, 1024, 16, 3072, 151936, True),
    "gpt-3-175b": NamedShape(96, 96, 128, 174_604_259_328, 12288, 96, 49152, 50257, True),
}


def named_spec(name: str, dtype: str, block_size: int = 16) -> KVCacheSpec | None:
    """Return the KV cache spec of a named model, or None when the name is not in the table."""
    shape = NAMED_SHAPES.get(name.lower())
    if shape is None:
        return None
    return KVCacheSpec(shape.num_layers, shape.num_kv_heads, shape.head_dim, block_size, dtype)
