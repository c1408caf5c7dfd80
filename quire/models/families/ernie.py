"""ERNIE 4.5 (dense): a Llama whose RoPE turns neighbours."""

from __future__ import annotations

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.model_config import ModelConfig
from quire.models.config.rope_config import read_rope
from quire.models.families import llama


def read_ernie(config: ConfigFields) -> ModelConfig:
    """Read an Ernie4_5ForCausalLM."""
    bias = config.boolean("use_bias", False)
    head_dim = config.integer("head_dim", 128)
    rope, _ = read_rope(config, head_dim, default_theta=500_000.0, interleaved=True)
    return llama.read_decoder(
        config,
        norm_eps=1e-5,
        tied=True,
        head_dim=head_dim,
        rope=rope,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
    )
