"""Llama 4's text: experts, chunks with RoPE, and layers that see all, whose queries grow."""

from __future__ import annotations

from dataclasses import replace

from quire.checkpoints.config_fields import ConfigFields
from quire.checkpoints.weight_names import FusedExperts
from quire.core.model.model_config import ModelConfig, QueryScaling
from quire.core.model.moe_config import ExpertRouting, MoEConfig
from quire.models.config.rope_config import read_rope
from quire.models.families import llama
from quire.models.families.smollm3 import read_rope_layers

#: Experts have names of our own: they are stored as one tensor.
NAMES = replace(
    llama.NAMES,
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
    router="feed_forward.router",
    expert_gate_up=(
        "feed_forward.experts.{expert}.gate_proj",
        "feed_forward.experts.{expert}.up_proj",
    ),
    expert_down="feed_forward.experts.{expert}.down_proj",
    shared_gate_up=("feed_forward.shared_expert.gate_proj", "feed_forward.shared_expert.up_proj"),
    shared_down="feed_forward.shared_expert.down_proj",
    fused_experts=(
        FusedExperts(
            gate_up="feed_forward.experts.gate_up_proj",
            down="feed_forward.experts.down_proj",
            transposed=True,
        ),
    ),
)
#: Of the whole model, whose pictures are not read.
WHOLE_NAMES = replace(
    NAMES.under("language_model."),
    harmless=(*NAMES.harmless, r"vision_model\..*", r"multi_modal_projector\..*"),
)


def read_llama4(config: ConfigFields) -> ModelConfig:
    """Read a Llama4ForCausalLM."""
    head_dim, rope_layers = config.integer("head_dim", 128), read_rope_layers(config)
    rope, _ = read_rope(config, head_dim, default_theta=500_000.0, interleaved=True)
    if rope.scaling is not None and rope.scaling["rope_type"] not in ("llama3", "linear"):
        # Queries and keys are normalised after they turn, which must not change their length.
        raise config.error("rope_scaling", "must be of type llama3 or linear in this architecture")
    bias = config.boolean("attention_bias", False)
    length, factor = config.integer("floor_scale", 8192), config.number("attn_scale", 0.1)
    # A number in the first files.
    config.has("attn_temperature_tuning")
    grows = config.values.get("attn_temperature_tuning", True)
    is_null = "attention_chunk_size" in config.values and not config.has("attention_chunk_size")
    pattern = [("full_attention", "chunked_attention")[turns] for turns in rope_layers]
    chunks = llama.read_windows(config, 8192, pattern, "attention_chunk_size", "chunked_attention")
    dense_width = config.integer("intermediate_size_mlp", 16384)
    made = llama.read_decoder(
        config,
        norm_eps=1e-5,
        head_dim=head_dim,
        rope=rope,
        rope_layers=rope_layers,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm="unit_heads" if config.boolean("use_qk_norm", True) else "",
        query_scaling=QueryScaling(factor, length, first=1, turned=False) if grows else None,
        moe=_read_experts(config, len(rope_layers)),
        **({} if is_null else chunks | {"chunked": True}),
    )
    return replace(made, intermediate_size=dense_width)


def read_llama4_whole(config: ConfigFields) -> ModelConfig:
    """Read the text of a Llama4ForConditionalGeneration; no picture is read."""
    given = config.object("text_config") or ConfigFields({}, config.where)
    text = given.changed({"architectures": config.strings("architectures")})
    made = read_llama4(text)
    text.refuse_unread()
    config.require("tie_word_embeddings", made.tie_word_embeddings)
    for name in ("vision_config", "boi_token_index", "eoi_token_index", "image_token_index"):
        config.has(name)
    return made


def _read_experts(config: ConfigFields, layers: int) -> MoEConfig:
    config.require("num_experts_per_tok", 1)
    step = config.integer("interleave_moe_layer_step", 1)
    every = list(range(step - 1, layers, step))
    sparse = config.integers("moe_layers") if config.has("moe_layers") else every
    return MoEConfig(
        num_experts=config.integer("num_local_experts", 16),
        intermediate_size=config.integer("intermediate_size", 8192),
        routing=ExpertRouting(top_k=1, scores="sigmoid", renormalize=False),
        weighs_inputs=True,
        shared_size=config.integer("intermediate_size", 8192),
        dense_layers=tuple(layer for layer in range(layers) if layer not in sparse),
    )
