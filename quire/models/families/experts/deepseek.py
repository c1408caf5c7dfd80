"""DeepSeek V2 and V3 (R1 is one, too): latent attention, and the experts of ``deepseek_moe``."""

from __future__ import annotations

import math
from dataclasses import replace

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.model_config import LatentConfig, ModelConfig, RopeConfig
from quire.models.config.expert_config import read_deepseek_experts
from quire.models.config.rope_config import read_rope
from quire.models.families import llama
from quire.models.families.experts import deepseek_moe

NAMES = replace(
    deepseek_moe.NAMES,
    qkv=(),
    queries="self_attn.q_proj",
    query_down="self_attn.q_a_proj",
    query_norm="self_attn.q_a_layernorm",
    query_up="self_attn.q_b_proj",
    latents="self_attn.kv_a_proj_with_mqa",
    latent_norm="self_attn.kv_a_layernorm",
    latent_heads="self_attn.kv_b_proj",
)


def read_deepseek_v2(config: ConfigFields) -> ModelConfig:
    """Read a DeepseekV2ForCausalLM; V2-Lite makes queries of the hidden state."""
    config.require("mlp_bias", False)
    # Weights of experts stay as they are, whatever the field says: DeepSeek's own code says so of
    # all models that are scaled, and transformers of all.
    config.require("norm_topk_prob", False)
    return _read(config, interleaved=True, renormalize=False)


def read_deepseek_v3(config: ConfigFields) -> ModelConfig:
    """Read a DeepseekV3ForCausalLM."""
    # Modules that draft further tokens are no part of the model itself.
    config.has("num_nextn_predict_layers")
    # What is meant where they are missing differs from one implementation to the next.
    for name in ("n_group", "topk_group", "routed_scaling_factor"):
        config.number(name)
    interleaved = config.boolean("rope_interleave", True)
    return _read(config, interleaved=interleaved, renormalize=True)


def _read(config: ConfigFields, *, interleaved: bool, renormalize: bool) -> ModelConfig:
    for name in ("attention_bias", "use_qk_norm"):
        config.require(name, False)
    rank = config.integer("q_lora_rank") if config.has("q_lora_rank") else None
    latent = LatentConfig(
        rank=config.integer("kv_lora_rank"),
        rope_dim=config.integer("qk_rope_head_dim"),
        key_dim=config.integer("qk_nope_head_dim"),
        value_dim=config.integer("v_head_dim"),
        query_rank=rank,
    )
    size = latent.key_dim + latent.rope_dim
    config.require("head_dim", latent.rope_dim)
    config.require("qk_head_dim", size)
    config.require("num_key_value_heads", config.integer("num_attention_heads"))
    for name in ("ep_size", "seq_aux", "aux_loss_alpha"):
        config.has(name)
    rope, context = read_rope(config, latent.rope_dim, interleaved=interleaved)
    decoder = llama.read_decoder(
        config,
        head_dim=size,
        rope=rope,
        latent=latent,
        attention_scale=_scale(size, rope),
        moe=read_deepseek_experts(config, renormalize=renormalize),
    )
    return replace(decoder, num_kv_heads=decoder.num_heads, max_position_embeddings=context)


def _scale(size: int, rope: RopeConfig) -> float:
    """Return what scores are multiplied by: YaRN's factor on them is apart from RoPE's."""
    scaling, scale = rope.scaling or {}, float(size**-0.5)
    every = scaling.get("mscale_all_dim", 0.0)
    if not every or scaling["factor"] <= 1:
        return scale
    return float(scale * (0.1 * every * math.log(scaling["factor"]) + 1.0) ** 2)
