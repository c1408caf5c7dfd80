"""Falcon: attention and MLP in parallel; one KV head (7B) or heads in groups (40B)."""

from __future__ import annotations

from dataclasses import replace

from quire.checkpoints.config_fields import ConfigFields
from quire.checkpoints.weight_names import WeightNames
from quire.core.model.model_config import ModelConfig
from quire.models.config.rope_config import read_rope
from quire.models.families.llama import read_activation, read_architecture

NAMES = WeightNames(
    optional_prefix="transformer.",
    layer="transformer.h.{layer}.",
    embedding="transformer.word_embeddings",
    final_norm="transformer.ln_f",
    attention_norm="input_layernorm",
    qkv=("self_attention.query_key_value",),
    attention_output="self_attention.dense",
    mlp_norm="post_attention_layernorm",
    gate_up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    groups_qkv=True,
    harmless=(r".*\.rotary_emb\.inv_freq",),
)


def falcon_names(config: ModelConfig) -> WeightNames:
    """Return what the tensors are called: norms in parallel have other names, or are one."""
    if not config.parallel:
        return NAMES
    if config.shared_norm:
        return replace(NAMES, mlp_norm="input_layernorm")
    return replace(NAMES, attention_norm="ln_attn", mlp_norm="ln_mlp")


def read_falcon(config: ConfigFields) -> ModelConfig:
    """Read a FalconForCausalLM."""
    config.require("alibi", False)
    hidden_size = config.integer("hidden_size")
    num_heads = _integer(config, "num_attention_heads", "n_head")
    if hidden_size % num_heads:
        rule = f"must be a multiple of the number of heads ({num_heads})"
        raise config.error("hidden_size", rule)
    # As first published, the larger model was told apart by its type.
    is_larger = config.values.get("model_type") == "RefinedWeb"
    grouped = config.boolean("new_decoder_architecture", is_larger)
    multi_query = config.boolean("multi_query", True)
    num_kv_heads = num_heads
    if grouped:
        name = "num_kv_heads" if config.has("num_kv_heads") else "n_head_kv"
        num_kv_heads = config.integer(name, num_heads)
        if num_heads % num_kv_heads:
            raise config.error(name, f"must divide num_attention_heads ({num_heads})")
    elif multi_query:
        num_kv_heads = 1
    parallel = grouped or config.boolean("parallel_attn", True)
    num_norms = config.integer("num_ln_in_parallel_attn", 2 if grouped else 1)
    bias = config.boolean("bias", False)
    head_dim = hidden_size // num_heads
    # The first checkpoints, all of 2048 tokens, name no context.
    context = config.integer("max_position_embeddings", 2048)
    rope, context = read_rope(config.changed({"max_position_embeddings": context}), head_dim)
    return ModelConfig(
        architecture=read_architecture(config),
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=_integer(config, "num_hidden_layers", "n_layer"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=config.integer("ffn_hidden_size", 4 * hidden_size),
        max_position_embeddings=context,
        activation=read_activation(config, "activation", "gelu"),
        gated_mlp=False,
        norm="layer_norm",
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        parallel=parallel,
        shared_norm=parallel and num_norms == 1,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        rope=rope,
        tie_word_embeddings=config.boolean("tie_word_embeddings", True),
    )


def _integer(config: ConfigFields, name: str, old: str) -> int:
    """Read a field that the first checkpoints spell otherwise."""
    return config.integer(old if config.has(old) else name)
