"""SmolLM3: a Llama without RoPE in every fourth layer."""

from __future__ import annotations

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.model_config import ModelConfig
from quire.models.families import llama


def read_smollm3(config: ConfigFields) -> ModelConfig:
    """Read a SmolLM3ForCausalLM."""
    config.require("use_sliding_window", False)
    config.require("sliding_window")
    bias = config.boolean("attention_bias", False)
    return llama.read_decoder(
        config,
        tied=True,
        default_theta=2e6,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.boolean("mlp_bias", False),
        rope_layers=read_rope_layers(config),
    )


def read_rope_layers(config: ConfigFields) -> tuple[bool, ...]:
    """Read which layers turn queries and keys: 1 in ``no_rope_layers``, or all but each n-th."""
    num_layers = config.integer("num_hidden_layers")
    every = config.integer("no_rope_layer_interval", 4)
    config.has("no_rope_layers")
    flags = config.values.get("no_rope_layers")
    if not flags:
        return tuple((layer + 1) % every != 0 for layer in range(num_layers))
    if not isinstance(flags, list) or len(flags) != num_layers or set(flags) - {0, 1}:
        raise config.error("no_rope_layers", f"must be {num_layers} of 0 and 1")
    return tuple(map(bool, flags))
