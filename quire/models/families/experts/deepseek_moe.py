"""DeepSeek's mixture of experts, and decoders of ordinary attention that have it: GLM-4.5, dots.

Sigmoid scores, a bias that only chooses, groups of experts, experts that are always on, and a dense
MLP in the first layers.
"""

from __future__ import annotations

from dataclasses import replace

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.model_config import ModelConfig
from quire.models.config.expert_config import read_deepseek_experts
from quire.models.config.rope_config import read_rope
from quire.models.families import llama
from quire.models.families.experts import qwen_moe

NAMES = replace(
    qwen_moe.NAMES,
    choice_bias="mlp.gate.e_score_correction_bias",
    shared_gate_up=("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
    shared_down="mlp.shared_experts.down_proj",
    shared_gate="",
)


def read_glm4_moe(config: ConfigFields) -> ModelConfig:
    """Read a Glm4MoeForCausalLM (GLM-4.5, 4.6)."""
    # Modules that draft further tokens are no part of the model itself.
    config.has("num_nextn_predict_layers")
    head_dim = llama.read_head_dim(config)
    rope, _ = read_rope(config, head_dim, default_fraction=0.5)
    return llama.read_decoder(
        config,
        norm_eps=1e-5,
        head_dim=head_dim,
        rope=rope,
        qkv_bias=config.boolean("attention_bias", False),
        qk_norm="rms_of_heads" if config.boolean("use_qk_norm", False) else "",
        moe=read_deepseek_experts(config, renormalize=True),
    )


def read_dots1(config: ConfigFields) -> ModelConfig:
    """Read a Dots1ForCausalLM (dots.llm1): a window in the layers from ``max_window_layers`` on."""
    bias = config.boolean("attention_bias", False)
    num_layers = config.integer("num_hidden_layers")
    first = config.integer("max_window_layers", 62, minimum=0)
    is_null = "sliding_window" in config.values and not config.has("sliding_window")
    first = num_layers if is_null else first
    pattern = [("full_attention", "sliding_attention")[n >= first] for n in range(num_layers)]
    return llama.read_decoder(
        config,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm="rms_of_heads",
        moe=read_deepseek_experts(config, renormalize=False),
        **llama.read_windows(config, 4096, pattern),
    )
