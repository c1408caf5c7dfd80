"""GPT-NeoX and Pythia: fused heads, LayerNorm, attention and MLP mostly in parallel."""

from __future__ import annotations

from quire.checkpoints.config_fields import ConfigFields
from quire.checkpoints.weight_names import WeightNames
from quire.core.model.model_config import ModelConfig
from quire.models.config.rope_config import read_rope
from quire.models.families import llama

NAMES = WeightNames(
    optional_prefix="gpt_neox.",
    layer="gpt_neox.layers.{layer}.",
    embedding="gpt_neox.embed_in",
    final_norm="gpt_neox.final_layer_norm",
    head="embed_out",
    attention_norm="input_layernorm",
    qkv=("attention.query_key_value",),
    attention_output="attention.dense",
    mlp_norm="post_attention_layernorm",
    gate_up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    groups_qkv=True,
    # The causal mask and frequencies, which old checkpoints store as tensors.
    harmless=(r".*\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),
)


def read_gpt_neox(config: ConfigFields) -> ModelConfig:
    """Read a GPTNeoXForCausalLM."""
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if hidden_size % num_heads:
        rule = f"must be a multiple of the number of heads ({num_heads})"
        raise config.error("hidden_size", rule)
    rope, _ = read_rope(
        config,
        hidden_size // num_heads,
        default_theta=config.number("rotary_emb_base", 10_000.0, above=1.0),
        default_fraction=config.number("rotary_pct", 0.25),
    )
    bias = config.boolean("attention_bias", True)
    return llama.read_decoder(
        config,
        eps_field="layer_norm_eps",
        norm_eps=1e-5,
        activation="gelu",
        norm="layer_norm",
        parallel=config.boolean("use_parallel_residual", True),
        gated_mlp=False,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=True,
        rope=rope,
    )
