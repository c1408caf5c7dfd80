"""Llama and its near relatives: Mistral, Qwen2 and Qwen3 differ from it by values only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.checkpoints.config_fields import ConfigFields
from quire.checkpoints.weight_names import WeightNames
from quire.core.model.model_config import ModelConfig, QueryScaling
from quire.models.config.rope_config import read_rope

NAMES = WeightNames(
    layer="model.layers.{layer}.",
    embedding="model.embed_tokens",
    final_norm="model.norm",
    attention_norm="input_layernorm",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_output="self_attn.o_proj",
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
    mlp_norm="post_attention_layernorm",
    gate_up=("mlp.gate_proj", "mlp.up_proj"),
    down="mlp.down_proj",
    harmless=(r".*rotary_emb\.inv_freq",),
)

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
}


def read_llama(config: ConfigFields) -> ModelConfig:
    """Read a LlamaForCausalLM (Llama 2, 3, 3.1, 3.2, 3.3 and models of that shape)."""
    config.require("sliding_window")
    _check_layer_types(config, None)
    bias = config.boolean("attention_bias", False)
    return read_decoder(
        config,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.boolean("mlp_bias", False),
    )


def read_mistral(config: ConfigFields) -> ModelConfig:
    """Read a MistralForCausalLM: one sliding window in all layers, or none when it is null."""
    for name in ("attention_bias", "mlp_bias"):
        config.require(name, False)
    return read_decoder(config, sliding_window=read_uniform_window(config, default=4096))


def read_ministral(config: ConfigFields) -> ModelConfig:
    """Read a MinistralForCausalLM: Mistral with a window in some layers only."""
    return read_decoder(config, **read_windows(config, 4096, ("sliding_attention",)))


def read_ministral3(config: ConfigFields) -> ModelConfig:
    """Read a Ministral3ForCausalLM: Mistral whose queries grow past the original context."""
    rope = config.object("rope_parameters")
    if rope is None:
        raise config.error("rope_parameters", "is required")
    scaling, length = None, rope.integer("original_max_position_embeddings")
    if rope.values.get("llama_4_scaling_beta") != 0:
        scaling = QueryScaling(factor=rope.number("llama_4_scaling_beta"), length=length)
    apart = ("llama_4_scaling_beta", "max_position_embeddings")
    kept = {name: value for name, value in rope.values.items() if name not in apart}
    return read_decoder(
        config.changed({"rope_parameters": kept}),
        norm_eps=1e-5,
        head_dim=config.integer("head_dim", 128),
        query_scaling=scaling,
        sliding_window=read_uniform_window(config, default=None),
    )


def read_qwen2(config: ConfigFields) -> ModelConfig:
    """Read a Qwen2ForCausalLM (also Qwen 2.5): biases on queries, keys and values."""
    return read_decoder(config, qkv_bias=True, **read_qwen_windows(config))


def read_qwen3(config: ConfigFields) -> ModelConfig:
    """Read a Qwen3ForCausalLM: a norm on each query and key head."""
    bias = config.boolean("attention_bias", False)
    return read_decoder(
        config,
        head_dim=config.integer("head_dim", 128),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm="rms_of_heads",
        **read_qwen_windows(config),
    )


def read_decoder(
    config: ConfigFields,
    *,
    eps_field: str = "rms_norm_eps",
    norm_eps: float = 1e-6,
    activation_field: str = "hidden_act",
    activation: str = "silu",
    default_theta: float = 10_000.0,
    tied: bool = False,
    **choices: Any,
) -> ModelConfig:
    """Read what all Llama-style configurations share.

    Args:
        config: The checkpoint's configuration.
        eps_field, activation_field: Names of the fields of the norms' epsilon and the activation.
        norm_eps, activation: Values of these fields where the configuration names none.
        tied: Whether embedding and head are one matrix where the configuration says nothing.
        default_theta: RoPE base where the configuration names none.
        **choices: Fields of :class:`ModelConfig` in which the family differs.

    Raises:
        ModelLoadError: A field is missing, of the wrong type or out of range.
    """
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    num_kv_heads = config.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise config.error("num_key_value_heads", f"must divide num_attention_heads ({num_heads})")
    if "head_dim" not in choices:
        choices["head_dim"] = read_head_dim(config)
    if "rope" not in choices:
        choices["rope"], context = read_rope(
            config, choices["head_dim"], default_theta=default_theta
        )
    else:
        context = config.integer("max_position_embeddings")
    return ModelConfig(
        architecture=read_architecture(config),
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        intermediate_size=config.integer("intermediate_size"),
        max_position_embeddings=context,
        activation=read_activation(config, activation_field, activation),
        norm_eps=config.number(eps_field, norm_eps),
        tie_word_embeddings=config.boolean("tie_word_embeddings", tied),
        **choices,
    )


def read_architecture(config: ConfigFields) -> str:
    """Return the name under ``architectures``, of which there must be one."""
    names = config.strings("architectures")
    if len(names) != 1:
        raise config.error("architectures", "must name one class, such as LlamaForCausalLM")
    return names[0]


def read_activation(config: ConfigFields, name: str, default: str) -> str:
    """Return our name of the activation in field ``name``."""
    activation = config.text(name, default)
    if activation not in ACTIVATIONS:
        raise config.error(name, f"must be one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[activation]


def read_uniform_window(config: ConfigFields, default: int | None) -> int | None:
    """Read a window that all layers share; null means none, ``default`` holds when absent."""
    window = default
    if "sliding_window" in config.values:
        window = config.integer("sliding_window") if config.has("sliding_window") else None
    _check_layer_types(config, window)
    return window


def _check_layer_types(config: ConfigFields, window: int | None) -> None:
    """Refuse a ``layer_types`` that contradicts one ``window`` for all layers."""
    kind = "full_attention" if window is None else "sliding_attention"
    if set(config.strings("layer_types")) - {kind}:
        raise config.error("layer_types", f"must all be {kind} in this architecture")


def read_windows(
    config: ConfigFields,
    default: int,
    pattern: Sequence[str],
    name: str = "sliding_window",
    kind: str = "sliding_attention",
) -> dict[str, Any]:
    """Read a window and the layers that have it.

    Args:
        config: The checkpoint's configuration.
        default: The window where the configuration names none.
        pattern: Types of layers, repeated, where the configuration has no ``layer_types``.
        name, kind: The window's field, and the type of layers that have it.
    """
    num_layers = config.integer("num_hidden_layers")
    types = config.strings("layer_types")
    types = types or [pattern[layer % len(pattern)] for layer in range(num_layers)]
    known = {"full_attention": False, kind: True}
    if len(types) != num_layers or set(types) - set(known):
        raise config.error("layer_types", f"must be {num_layers} of {', '.join(known)}")
    flags = tuple(map(known.__getitem__, types))
    return {"sliding_window": config.integer(name, default), "layer_windows": flags}


def read_qwen_windows(config: ConfigFields) -> dict[str, Any]:
    """Read Qwen's window: off by default, else in the layers from ``max_window_layers`` on."""
    num_layers = config.integer("num_hidden_layers")
    first = config.integer("max_window_layers", 28, minimum=0)
    types = config.strings("layer_types")
    is_null = "sliding_window" in config.values and not config.has("sliding_window")
    if not config.boolean("use_sliding_window", False) or is_null:
        config.has("sliding_window")
        if set(types) - {"full_attention"}:
            raise config.error("layer_types", "must be full_attention without a sliding window")
        return {}
    pattern = [("full_attention", "sliding_attention")[n >= first] for n in range(num_layers)]
    return read_windows(config, 4096, pattern)


def read_head_dim(config: ConfigFields) -> int:
    """Read the elements of a head; its share of the model's where nothing tells."""
    if config.has("head_dim"):
        return config.integer("head_dim")
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    if hidden_size % num_heads:
        rule = f"must be a multiple of the number of heads ({num_heads})"
        raise config.error("hidden_size", rule)
    return hidden_size // num_heads
