"""Mixtral: a Llama-style decoder with a mixture of experts in place of the MLP."""

from __future__ import annotations

from dataclasses import replace

from quire.core.model_config import ModelConfig, MoEConfig
from quire.models.config_fields import ConfigFields
from quire.models.families import llama

NAMES = replace(
    llama.NAMES,
    router="block_sparse_moe.gate",
    gate_up=("block_sparse_moe.experts.{expert}.w1", "block_sparse_moe.experts.{expert}.w3"),
    down="block_sparse_moe.experts.{expert}.w2",
)


def read_mixtral(config: ConfigFields) -> ModelConfig:
    """Read a MixtralForCausalLM."""
    config.require("attention_bias", False)
    num_experts = config.integer("num_local_experts", 8)
    top_k = config.integer("num_experts_per_tok", 2)
    if top_k > num_experts:
        raise config.error("num_experts_per_tok", f"must be at most {num_experts} experts")
    return llama.read_decoder(
        config,
        norm_eps=1e-5,
        default_theta=1e6,
        moe=MoEConfig(
            num_experts=num_experts,
            top_k=top_k,
            intermediate_size=config.integer("intermediate_size"),
        ),
        sliding_window=llama.read_uniform_window(config, default=None),
    )
