"""Phi: Phi-3 and Phi-4 are a Llama with fused matrices and LongRoPE, Phi-1 and 2 are parallel."""

from __future__ import annotations

from dataclasses import replace

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.model_config import ModelConfig
from quire.models.config.rope_config import read_rope
from quire.models.families import llama

PHI3_NAMES = replace(llama.NAMES, qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))
PHI_NAMES = replace(
    llama.NAMES,
    attention_output="self_attn.dense",
    mlp_norm="input_layernorm",
    gate_up=("mlp.fc1",),
    down="mlp.fc2",
    final_norm="model.final_layernorm",
)


def read_phi3(config: ConfigFields) -> ModelConfig:
    """Read a Phi3ForCausalLM (Phi 3, 3.5 and 4)."""
    config.require("attention_bias", False)
    return llama.read_decoder(
        config, norm_eps=1e-5, sliding_window=llama.read_uniform_window(config, default=None)
    )


def read_phi(config: ConfigFields) -> ModelConfig:
    """Read a PhiForCausalLM (Phi 1, 1.5 and 2)."""
    config.require("qk_layernorm", False)
    heads = config.integer("num_attention_heads")
    rope, _ = read_rope(config, config.integer("hidden_size") // heads, default_fraction=0.5)
    return llama.read_decoder(
        config,
        eps_field="layer_norm_eps",
        norm_eps=1e-5,
        activation="gelu_new",
        norm="layer_norm",
        parallel=True,
        shared_norm=True,
        gated_mlp=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        head_bias=True,
        rope=rope,
    )
