"""Shapes of well-known models, for calculators that have no checkpoint at hand.

Layers, KV heads, head size and parameters follow from each model's published ``config.json`` or
paper (GPT-3: Brown et al. 2020, table 2.1); tied matrices count once.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.kv_cache_spec import KVCacheSpec


@dataclass(frozen=True, slots=True)
class NamedShape:
    """What memory a model takes: its KV cache's shape and its number of weights."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_parameters: int


NAMED_SHAPES: dict[str, NamedShape] = {
    "llama-2-7b": NamedShape(32, 32, 128, 6_738_415_616),
    "llama-2-13b": NamedShape(40, 40, 128, 13_015_864_320),
    "llama-2-70b": NamedShape(80, 8, 128, 68_976_648_192),
    "llama-3.1-8b": NamedShape(32, 8, 128, 8_030_261_248),
    "llama-3.1-70b": NamedShape(80, 8, 128, 70_553_706_496),
    "llama-3.1-405b": NamedShape(126, 8, 128, 405_853_388_800),
    "llama-3.2-1b": NamedShape(16, 8, 64, 1_235_814_400),
    "mistral-7b": NamedShape(32, 8, 128, 7_241_732_096),
    "mixtral-8x7b": NamedShape(32, 8, 128, 46_702_792_704),
    "qwen3-0.6b": NamedShape(28, 8, 128, 596_049_920),
    "gpt-3-175b": NamedShape(96, 96, 128, 174_604_259_328),
}


def named_spec(name: str, dtype: str, block_size: int = 16) -> KVCacheSpec | None:
    """Return the KV cache spec of a named model, or None when the name is not in the table."""
    shape = NAMED_SHAPES.get(name.lower())
    if shape is None:
        return None
    return KVCacheSpec(shape.num_layers, shape.num_kv_heads, shape.head_dim, block_size, dtype)
