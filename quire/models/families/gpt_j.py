"""GPT-J: attention and MLP in parallel after one norm; RoPE turns neighbours, some of a head."""

from __future__ import annotations

from quire.checkpoints.config_fields import ConfigFields
from quire.checkpoints.weight_names import WeightNames
from quire.core.model.model_config import ModelConfig, RopeConfig
from quire.models.families.llama import read_activation, read_architecture

NAMES = WeightNames(
    optional_prefix="transformer.",
    layer="transformer.h.{layer}.",
    embedding="transformer.wte",
    final_norm="transformer.ln_f",
    attention_norm="ln_1",
    qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    attention_output="attn.out_proj",
    mlp_norm="ln_1",
    gate_up=("mlp.fc_in",),
    down="mlp.fc_out",
    # The causal mask and sines, which old checkpoints store as tensors.
    harmless=(r".*\.attn\.(bias|masked_bias|embed_positions)",),
)


def read_gpt_j(config: ConfigFields) -> ModelConfig:
    """Read a GPTJForCausalLM."""
    hidden_size, num_heads = config.integer("n_embd"), config.integer("n_head")
    if hidden_size % num_heads:
        raise config.error("n_embd", f"must be a multiple of the number of heads ({num_heads})")
    head_dim = hidden_size // num_heads
    rotary_dim = config.integer("rotary_dim", head_dim)
    if rotary_dim > head_dim or rotary_dim % 2:
        raise config.error("rotary_dim", f"must be even and at most {head_dim}")
    return ModelConfig(
        architecture=read_architecture(config),
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=config.integer("n_layer"),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        intermediate_size=config.integer("n_inner", 4 * hidden_size),
        max_position_embeddings=config.integer("n_positions", 2048),
        activation=read_activation(config, "activation_function", "gelu_new"),
        gated_mlp=False,
        norm="layer_norm",
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        parallel=True,
        shared_norm=True,
        mlp_bias=True,
        head_bias=True,
        rope=RopeConfig(theta=10_000.0, rotary_dim=rotary_dim, interleaved=True),
        tie_word_embeddings=config.boolean("tie_word_embeddings", False),
    )
