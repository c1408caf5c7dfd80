"""KV shapes of well-known models, for calculators that have no checkpoint at hand.

Layers, KV heads and head size as published in each model's ``config.json`` or paper (GPT-3: Brown
et al. 2020, table 2.1).
"""

from __future__ import annotations

from quire.core.kv_cache_spec import KVCacheSpec

#: Name to (layers, KV heads, head dim).
NAMED_SHAPES: dict[str, tuple[int, int, int]] = {
    "llama-2-7b": (32, 32, 128),
    "llama-2-13b": (40, 40, 128),
    "llama-2-70b": (80, 8, 128),
    "llama-3.1-8b": (32, 8, 128),
    "llama-3.1-70b": (80, 8, 128),
    "llama-3.1-405b": (126, 8, 128),
    "llama-3.2-1b": (16, 8, 64),
    "mistral-7b": (32, 8, 128),
    "mixtral-8x7b": (32, 8, 128),
    "qwen3-0.6b": (28, 8, 128),
    "gpt-3-175b": (96, 96, 128),
}


def named_spec(name: str, dtype: str, block_size: int = 16) -> KVCacheSpec | None:
    """Return the KV cache spec of a named model, or None when the name is not in the table."""
    shape = NAMED_SHAPES.get(name.lower())
    return None if shape is None else KVCacheSpec(*shape, block_size, dtype)
