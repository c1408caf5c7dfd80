"""gpt-oss: biased experts in every layer, attention with sinks, every other layer with a window."""

from __future__ import annotations

from dataclasses import replace

from quire.checkpoints.config_fields import ConfigFields
from quire.checkpoints.weight_names import FusedExperts
from quire.core.model.model_config import ModelConfig
from quire.core.model.moe_config import ExpertRouting, MoEConfig
from quire.kernels.activation import SIGMOID_FACTOR, SWIGLU_LIMIT
from quire.models.config.expert_config import read_top_k
from quire.models.families import llama

#: Experts have names of our own: they are stored as one tensor.
NAMES = replace(
    llama.NAMES,
    sinks="self_attn.sinks",
    router="mlp.router",
    expert_gate_up=("mlp.experts.{expert}.gate_proj", "mlp.experts.{expert}.up_proj"),
    expert_down="mlp.experts.{expert}.down_proj",
    fused_experts=(
        FusedExperts(
            gate_up="mlp.experts.gate_up_proj",
            down="mlp.experts.down_proj",
            transposed=True,
            interleaved=True,
        ),
    ),
)


def read_gpt_oss(config: ConfigFields) -> ModelConfig:
    """Read a GptOssForCausalLM."""
    config.require("hidden_act", "silu")
    config.require("swiglu_alpha", SIGMOID_FACTOR)
    config.require("swiglu_limit", SWIGLU_LIMIT)
    # OpenAI's own names of what transformers has as num_experts_per_tok and in the RoPE.
    config.has("experts_per_token")
    config.has("initial_context_length")
    num_experts = config.integer("num_local_experts", 128)
    bias = config.boolean("attention_bias", True)
    read = llama.read_decoder(
        config,
        norm_eps=1e-5,
        default_theta=150_000.0,
        head_dim=config.integer("head_dim", 64),
        qkv_bias=bias,
        output_bias=bias,
        attention_sinks=True,
        moe=MoEConfig(
            num_experts=num_experts,
            intermediate_size=config.integer("intermediate_size"),
            routing=ExpertRouting(top_k=read_top_k(config, num_experts, default=4)),
            router_bias=True,
            expert_bias=True,
        ),
        **llama.read_windows(config, 128, ("sliding_attention", "full_attention")),
    )
    return replace(read, activation="clamped_swiglu")
