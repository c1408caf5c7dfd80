"""Granite: a Llama with factors of embeddings, scores, residuals and logits; some with experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.checkpoints.config_fields import ConfigFields
from quire.checkpoints.weight_names import FusedExperts
from quire.core.model.model_config import ModelConfig
from quire.core.model.moe_config import ExpertRouting, MoEConfig
from quire.models.config.expert_config import read_top_k
from quire.models.families import llama

#: Experts have names of our own: they are stored as one tensor.
MOE_NAMES = replace(
    llama.NAMES,
    router="block_sparse_moe.router.layer",
    expert_gate_up=(
        "block_sparse_moe.experts.{expert}.gate_proj",
        "block_sparse_moe.experts.{expert}.up_proj",
    ),
    expert_down="block_sparse_moe.experts.{expert}.down_proj",
    shared_gate_up=("shared_mlp.input_linear",),
    shared_down="shared_mlp.output_linear",
    fused_experts=(
        FusedExperts(
            gate_up="block_sparse_moe.input_linear",
            down="block_sparse_moe.output_linear",
            weight=".weight",
            bias=".bias",
        ),
        FusedExperts(
            gate_up="block_sparse_moe.experts.gate_up_proj",
            down="block_sparse_moe.experts.down_proj",
            router="block_sparse_moe.router",
        ),
    ),
)


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


def read_granite_moe(config: ConfigFields) -> ModelConfig:
    """Read a GraniteMoeForCausalLM."""
    return _read_granite_moe(config, 0)


def read_granite_moe_shared(config: ConfigFields) -> ModelConfig:
    """Read a GraniteMoeSharedForCausalLM: an expert may be always on."""
    return _read_granite_moe(config, config.integer("shared_intermediate_size", 0, minimum=0))


def _read_granite_moe(config: ConfigFields, shared_size: int) -> ModelConfig:
    num_experts = config.integer("num_local_experts", 8)
    moe = MoEConfig(
        num_experts=num_experts,
        intermediate_size=config.integer("intermediate_size"),
        routing=ExpertRouting(top_k=read_top_k(config, num_experts, default=2)),
        shared_size=shared_size,
    )
    return llama.read_decoder(config, moe=moe, **read_factors(config))
