"""OLMo 2 and 3: norms of what a part gives, and of all heads of queries and of keys together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.model_config import ModelConfig
from quire.models.config.rope_config import read_ropes
from quire.models.families import llama

NAMES = replace(
    llama.NAMES,
    attention_norm="",
    attention_norm_after="post_attention_layernorm",
    mlp_norm="",
    mlp_norm_after="post_feedforward_layernorm",
)


def read_olmo2(config: ConfigFields) -> ModelConfig:
    """Read an Olmo2ForCausalLM."""
    return _read(config)


def read_olmo3(config: ConfigFields) -> ModelConfig:
    """Read an Olmo3ForCausalLM: a window in three of four layers, whose RoPE is not scaled."""
    head_dim = llama.read_head_dim(config)
    rope, window_rope, _ = read_ropes(config, head_dim, default_theta=500_000.0)
    pattern = ["sliding_attention"] * 3 + ["full_attention"]
    windows = llama.read_windows(config, 4096, pattern)
    return _read(config, head_dim=head_dim, rope=rope, window_rope=window_rope, **windows)


def _read(config: ConfigFields, **choices: Any) -> ModelConfig:
    bias = config.boolean("attention_bias", False)
    return llama.read_decoder(
        config,
        norm_eps=1e-5,
        norm_placement="post",
        qk_norm="rms_of_rows",
        qkv_bias=bias,
        output_bias=bias,
        **choices,
    )
