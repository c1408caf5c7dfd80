"""Command R: LayerNorm without bias, attention and MLP in parallel, RoPE of neighbours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.model_config import ModelConfig
from quire.models.config.rope_config import read_rope
from quire.models.families import llama

NAMES = replace(llama.NAMES, mlp_norm="input_layernorm")


def read_cohere(config: ConfigFields) -> ModelConfig:
    """Read a CohereForCausalLM (Command R, Command R+)."""
    heads = config.integer("num_attention_heads")
    qk_norm = "layer_of_heads" if config.boolean("use_qk_norm", False) else ""
    return _read(config, config.integer("hidden_size") // heads, 500_000.0, qk_norm=qk_norm)


def read_cohere2(config: ConfigFields) -> ModelConfig:
    """Read a Cohere2ForCausalLM (Command R7B, Command A): RoPE in the layers with a window."""
    every = config.integer("_sliding_window_pattern", config.integer("sliding_window_pattern", 4))
    windows = llama.read_windows(
        config, 4096, ["sliding_attention"] * (every - 1) + ["full_attention"]
    )
    head_dim = config.integer("head_dim", 128)
    return _read(config, head_dim, 10_000.0, rope_layers=windows["layer_windows"], **windows)


def _read(config: ConfigFields, head_dim: int, theta: float, **choices: Any) -> ModelConfig:
    bias = config.boolean("attention_bias", False)
    rope, _ = read_rope(config, head_dim, default_theta=theta, interleaved=True)
    return llama.read_decoder(
        config,
        eps_field="layer_norm_eps",
        norm_eps=1e-5,
        tied=True,
        norm="layer_norm",
        norm_bias=False,
        parallel=True,
        shared_norm=True,
        head_dim=head_dim,
        qkv_bias=bias,
        output_bias=bias,
        logits_scale=config.number("logit_scale", 0.0625),
        rope=rope,
        **choices,
    )
