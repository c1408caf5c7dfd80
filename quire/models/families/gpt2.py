"""GPT-2: learned positions, LayerNorm, one GELU projection, biases, weights stored (in, out)."""

from __future__ import annotations

from quire.checkpoints.config_fields import ConfigFields
from quire.checkpoints.weight_names import WeightNames
from quire.core.model.model_config import ModelConfig
from quire.models.families.llama import read_activation, read_architecture

NAMES = WeightNames(
    optional_prefix="transformer.",
    layer="transformer.h.{layer}.",
    embedding="transformer.wte",
    positions="transformer.wpe",
    final_norm="transformer.ln_f",
    attention_norm="ln_1",
    qkv=("attn.c_attn",),
    attention_output="attn.c_proj",
    mlp_norm="ln_2",
    gate_up=("mlp.c_fc",),
    down="mlp.c_proj",
    linear_is_transposed=True,
    # The causal mask, which old checkpoints store as a tensor.
    harmless=(r".*\.attn\.(bias|masked_bias)",),
)


def read_gpt2(config: ConfigFields) -> ModelConfig:
    """Read a GPT2LMHeadModel."""
    config.require("scale_attn_weights", True)
    config.require("scale_attn_by_inverse_layer_idx", False)
    hidden_size, num_heads = config.integer("n_embd"), config.integer("n_head")
    if hidden_size % num_heads:
        raise config.error("n_embd", f"must be a multiple of the number of heads ({num_heads})")
    positions = config.integer("n_positions", 1024)
    return ModelConfig(
        architecture=read_architecture(config),
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=config.integer("n_layer"),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        intermediate_size=config.integer("n_inner", 4 * hidden_size),
        max_position_embeddings=positions,
        activation=read_activation(config, "activation_function", "gelu_new"),
        gated_mlp=False,
        norm="layer_norm",
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        learned_positions=positions,
        tie_word_embeddings=config.boolean("tie_word_embeddings", True),
    )
