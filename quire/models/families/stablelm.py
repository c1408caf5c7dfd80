"""StableLM: LayerNorm, RoPE in part of a head, and in some attention and MLP in parallel."""

from __future__ import annotations

from dataclasses import replace

from quire.checkpoints.config_fields import ConfigFields
from quire.checkpoints.weight_names import WeightNames
from quire.core.model.model_config import ModelConfig
from quire.models.config.rope_config import read_rope
from quire.models.families import llama

NAMES = llama.NAMES


def stablelm_names(config: ModelConfig) -> WeightNames:
    """Return what the tensors are called: in parallel there is one norm."""
    return replace(NAMES, mlp_norm="input_layernorm") if config.shared_norm else NAMES


def read_stablelm(config: ConfigFields) -> ModelConfig:
    """Read a StableLmForCausalLM (StableLM 3B, StableLM 2 of 1.6 billion)."""
    config.require("qk_layernorm", False)
    config.has("hidden_dropout")
    parallel = config.boolean("use_parallel_residual", False)
    head_dim = llama.read_head_dim(config)
    rope, _ = read_rope(config, head_dim, default_fraction=0.25)
    return llama.read_decoder(
        config,
        eps_field="layer_norm_eps",
        norm_eps=1e-5,
        norm="layer_norm",
        parallel=parallel,
        shared_norm=parallel,
        qkv_bias=config.boolean("use_qkv_bias", False),
        head_dim=head_dim,
        rope=rope,
    )
