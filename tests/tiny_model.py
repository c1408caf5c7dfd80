"""The smallest model that settings and memory are resolved for."""

from __future__ import annotations

from quire.core.model.model_config import ModelConfig

TINY_MODEL = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=100,
    hidden_size=8,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    intermediate_size=8,
    max_position_embeddings=4096,
)
