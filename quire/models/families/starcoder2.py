"""StarCoder2: a Mistral with LayerNorm, biases and a plain MLP."""

from __future__ import annotations

from dataclasses import replace

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.model_config import ModelConfig
from quire.models.families import llama

NAMES = replace(llama.NAMES, gate_up=("mlp.c_fc",), down="mlp.c_proj")


def read_starcoder2(config: ConfigFields) -> ModelConfig:
    """Read a Starcoder2ForCausalLM."""
    bias = config.boolean("use_bias", True)
    # An older name of the activation, which says the same.
    config.has("mlp_type")
    return llama.read_decoder(
        config,
        eps_field="norm_epsilon",
        norm_eps=1e-5,
        activation="gelu_pytorch_tanh",
        tied=True,
        norm="layer_norm",
        gated_mlp=False,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        sliding_window=llama.read_uniform_window(config, default=None),
    )
