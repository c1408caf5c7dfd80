"""Granite: a Llama whose embeddings, scores, residuals and logits have factors."""

from __future__ import annotations

from typing import Any

from quire.core.model_config import ModelConfig
from quire.models.config_fields import ConfigFields
from quire.models.families import llama


def read_granite(config: ConfigFields) -> ModelConfig:
    """Read a GraniteForCausalLM."""
    return llama.read_decoder(
        config, mlp_bias=config.boolean("mlp_bias", False), **read_factors(config)
    )


def read_factors(config: ConfigFields) -> dict[str, Any]:
    """Read the factors and the attention's bias, which all of the family have."""
    bias = config.boolean("attention_bias", False)
    return {
        "qkv_bias": bias,
        "output_bias": bias,
        "attention_scale": config.number("attention_multiplier", 1.0),
        "embedding_scale": config.number("embedding_multiplier", 1.0),
        "residual_scale": config.number("residual_multiplier", 1.0),
        "logits_scale": 1 / config.number("logits_scaling", 1.0),
    }
