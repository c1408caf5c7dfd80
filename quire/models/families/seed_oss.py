"""Seed-OSS: a Llama whose queries, keys and values have biases, and outputs none."""

from __future__ import annotations

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.model_config import ModelConfig
from quire.models.families import llama


def read_seed_oss(config: ConfigFields) -> ModelConfig:
    """Read a SeedOssForCausalLM."""
    config.has("residual_dropout")
    return llama.read_decoder(
        config,
        head_dim=config.integer("head_dim", 128),
        qkv_bias=config.boolean("attention_bias", True),
        output_bias=config.boolean("attention_out_bias", False),
        mlp_bias=config.boolean("mlp_bias", False),
    )
