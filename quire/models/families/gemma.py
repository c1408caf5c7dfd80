"""Gemma: weights of norms less 1, embeddings times sqrt(D); from Gemma 2 on more norms."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.model_config import ModelConfig
from quire.models.config.rope_config import read_ropes
from quire.models.families import llama

NAMES = llama.NAMES
SANDWICH_NAMES = replace(
    llama.NAMES,
    attention_norm_after="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_norm_after="post_feedforward_layernorm",
)


def read_gemma(config: ConfigFields) -> ModelConfig:
    """Read a GemmaForCausalLM."""
    # The first files say gelu and mean its approximation; a second field corrects them.
    field = "hidden_activation" if config.has("hidden_activation") else "hidden_act"
    made = _read(config, activation_field=field)
    return replace(made, activation="gelu_tanh") if made.activation == "gelu" else made


def read_gemma2(config: ConfigFields) -> ModelConfig:
    """Read a Gemma2ForCausalLM: scores and logits are bent, every other layer has a window."""
    config.require("use_bidirectional_attention", False)
    return _read(
        config,
        activation_field="hidden_activation",
        norm_placement="both",
        attention_scale=config.number("query_pre_attn_scalar", 256) ** -0.5,
        attention_cap=_read_cap(config, "attn_logit_softcapping", 50.0),
        logits_cap=_read_cap(config, "final_logit_softcapping", 30.0),
        **llama.read_windows(config, 4096, ("sliding_attention", "full_attention")),
    )


def read_gemma3(config: ConfigFields) -> ModelConfig:
    """Read a Gemma3ForCausalLM: five layers with a window and a RoPE of their own, one without."""
    config.require("use_bidirectional_attention", False)
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        config.require(name)
    every = config.integer("_sliding_window_pattern", config.integer("sliding_window_pattern", 6))
    head_dim = config.integer("head_dim", 256)
    rope, window_rope, _ = read_ropes(config, head_dim, default_theta=1e6, window_theta=10_000.0)
    scalar = config.number("query_pre_attn_scalar", 256)
    return _read(
        config,
        activation_field="hidden_activation",
        norm_placement="both",
        qk_norm="rms_of_heads",
        rope=rope,
        window_rope=window_rope,
        attention_scale=scalar**-0.5,
        **llama.read_windows(
            config, 4096, ["sliding_attention"] * (every - 1) + ["full_attention"]
        ),
    )


def _read_cap(config: ConfigFields, name: str, default: float) -> float | None:
    """Read what values are bent towards; null means that they are not."""
    if config.has(name):
        return config.number(name)
    return None if name in config.values else default


def _read(config: ConfigFields, **choices: Any) -> ModelConfig:
    bias = config.boolean("attention_bias", False)
    return llama.read_decoder(
        config,
        activation="gelu_tanh",
        tied=True,
        head_dim=config.integer("head_dim", 256),
        norm_offset=1.0,
        embedding_scale=math.sqrt(config.integer("hidden_size")),
        qkv_bias=bias,
        output_bias=bias,
        **choices,
    )
