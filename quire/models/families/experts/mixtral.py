"""Mixtral: a Llama-style decoder with a mixture of experts in place of the MLP."""

from __future__ import annotations

from dataclasses import replace

from quire.checkpoints.config_fields import ConfigFields
from quire.checkpoints.weight_names import FusedExperts
from quire.core.model.model_config import ModelConfig
from quire.core.model.moe_config import ExpertRouting, MoEConfig
from quire.models.config.expert_config import read_top_k
from quire.models.families import llama

NAMES = replace(
    llama.NAMES,
    router="block_sparse_moe.gate",
    expert_gate_up=("block_sparse_moe.experts.{expert}.w1", "block_sparse_moe.experts.{expert}.w3"),
    expert_down="block_sparse_moe.experts.{expert}.w2",
    fused_experts=(
        FusedExperts(
            gate_up="mlp.experts.gate_up_proj", down="mlp.experts.down_proj", router="mlp.gate"
        ),
    ),
)


def read_mixtral(config: ConfigFields) -> ModelConfig:
    """Read a MixtralForCausalLM."""
    config.require("attention_bias", False)
    num_experts = config.integer("num_local_experts", 8)
    return llama.read_decoder(
        config,
        norm_eps=1e-5,
        default_theta=1e6,
        moe=MoEConfig(
            num_experts=num_experts,
            intermediate_size=config.integer("intermediate_size"),
            routing=ExpertRouting(top_k=read_top_k(config, num_experts, default=2)),
        ),
        sliding_window=llama.read_uniform_window(config, default=None),
    )
