"""Qwen2-MoE, Qwen3-MoE, OLMoE: decoders with a mixture of experts in all or some layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.checkpoints.config_fields import ConfigFields
from quire.checkpoints.weight_names import FusedExperts
from quire.core.model.model_config import ModelConfig
from quire.core.model.moe_config import ExpertRouting, MoEConfig
from quire.models.config.expert_config import read_top_k
from quire.models.families import llama

NAMES = replace(
    llama.NAMES,
    router="mlp.gate",
    expert_gate_up=("mlp.experts.{expert}.gate_proj", "mlp.experts.{expert}.up_proj"),
    expert_down="mlp.experts.{expert}.down_proj",
    shared_gate_up=("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
    shared_down="mlp.shared_expert.down_proj",
    shared_gate="mlp.shared_expert_gate",
    fused_experts=(FusedExperts(gate_up="mlp.experts.gate_up_proj", down="mlp.experts.down_proj"),),
)


def read_qwen2_moe(config: ConfigFields) -> ModelConfig:
    """Read a Qwen2MoeForCausalLM (also Qwen1.5-MoE): a gated expert is always on."""
    config.require("use_sliding_window", False)
    shared = config.integer("shared_expert_intermediate_size", 5632)
    return llama.read_decoder(
        config,
        qkv_bias=config.boolean("qkv_bias", True),
        moe=_read_experts(config, 60, 4, 1408, shared_size=shared, shared_gate=True),
        **llama.read_qwen_windows(config),
    )


def read_qwen3_moe(config: ConfigFields) -> ModelConfig:
    """Read a Qwen3MoeForCausalLM: Qwen3 with experts; a sliding window is one for all layers."""
    config.require("use_qk_norm", True)
    bias = config.boolean("attention_bias", False)
    windowed = config.boolean("use_sliding_window", False)
    config.has("max_window_layers")
    config.has("sliding_window")
    return llama.read_decoder(
        config,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm="rms_of_heads",
        moe=_read_experts(config, 128, 8, 768),
        sliding_window=llama.read_uniform_window(config, default=4096) if windowed else None,
    )


def read_olmoe(config: ConfigFields) -> ModelConfig:
    """Read an OlmoeForCausalLM: a norm over all heads of queries, and of keys."""
    bias = config.boolean("attention_bias", False)
    return llama.read_decoder(
        config,
        norm_eps=1e-5,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm="rms_of_rows",
        moe=_read_experts(config, 64, 8, config.integer("intermediate_size")),
    )


def _read_experts(
    config: ConfigFields, count: int, top_k: int, size: int, **choices: Any
) -> MoEConfig | None:
    """Read a mixture of experts; numbers are those where the configuration names none."""
    # The two names are one in transformers.
    name = "num_experts" if config.has("num_experts") else "num_local_experts"
    num_experts = config.integer(name, count)
    routing = ExpertRouting(
        top_k=read_top_k(config, num_experts, default=top_k),
        renormalize=config.boolean("norm_topk_prob", False),
    )
    dense = _read_dense_layers(config)
    if len(dense) == config.integer("num_hidden_layers"):
        return None
    return MoEConfig(
        num_experts=num_experts,
        intermediate_size=config.integer("moe_intermediate_size", size),
        routing=routing,
        dense_layers=dense,
        **choices,
    )


def _read_dense_layers(config: ConfigFields) -> tuple[int, ...]:
    """Read the layers without experts: those named, and all but each n-th."""
    num_layers = config.integer("num_hidden_layers")
    step = config.integer("decoder_sparse_step", 1)
    named = config.integers("mlp_only_layers")
    return tuple(n for n in range(num_layers) if n in named or (n + 1) % step)
