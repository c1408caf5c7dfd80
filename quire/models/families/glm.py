"""GLM-4: RoPE of neighbours in half of a head; the 0414 models norm what a part gives, too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.model_config import ModelConfig
from quire.models.config.rope_config import read_rope
from quire.models.families import llama

NAMES = replace(llama.NAMES, gate_up=("mlp.gate_up_proj",))
GLM4_NAMES = replace(
    NAMES, attention_norm_after="post_self_attn_layernorm", mlp_norm_after="post_mlp_layernorm"
)


def read_glm(config: ConfigFields) -> ModelConfig:
    """Read a GlmForCausalLM."""
    return _read(config)


def read_glm4(config: ConfigFields) -> ModelConfig:
    """Read a Glm4ForCausalLM."""
    return _read(config, norm_placement="both")


def _read(config: ConfigFields, **choices: Any) -> ModelConfig:
    head_dim = config.integer("head_dim", 128)
    rope, _ = read_rope(config, head_dim, default_fraction=0.5, interleaved=True)
    return llama.read_decoder(
        config,
        norm_eps=1.5625e-7,
        head_dim=head_dim,
        qkv_bias=config.boolean("attention_bias", True),
        rope=rope,
        **choices,
    )
