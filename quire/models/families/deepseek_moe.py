"""DeepSeek's mixture of experts, and decoders of ordinary attention that have it: GLM-4.5, dots.

Sigmoid scores, a bias that only chooses, groups of experts, experts that are always on, and a dense
MLP in the first layers.
"""

from __future__ import annotations

from dataclasses import replace

from quire.core.model_config import ModelConfig
from quire.core.moe_config import ExpertRouting, MoEConfig
from quire.models.config_fields import ConfigFields
from quire.models.families import llama, qwen_moe
from quire.models.families.mixtral import read_top_k
from quire.models.rope_config import read_rope

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
        moe=read_experts(config, renormalize=True),
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
        moe=read_experts(config, renormalize=False),
        **llama.read_windows(config, 4096, pattern),
    )


def read_experts(config: ConfigFields, *, renormalize: bool) -> MoEConfig | None:
    """Read the experts of a checkpoint with DeepSeek's fields; None where all layers are dense.

    ``noaux_tc`` of DeepSeek V3: sigmoids, a bias that chooses, groups that count as the sum of
    their two best. ``group_limited_greedy`` and ``greedy`` of V2: a softmax, groups that count as
    their best, and no groups.

    Args:
        config: The checkpoint's configuration.
        renormalize: Whether weights sum to 1 where it says nothing.
    """
    config.require("moe_layer_freq", 1)
    dense = min(config.integer("first_k_dense_replace", 0, minimum=0), _num_layers(config))
    num_experts = config.integer("n_routed_experts")
    method = config.text("topk_method", "noaux_tc")
    if method not in ("noaux_tc", "group_limited_greedy", "greedy"):
        rule = "must be noaux_tc, group_limited_greedy or greedy"
        raise config.error("topk_method", rule)
    is_third = method == "noaux_tc"
    scores = config.text("scoring_func", "sigmoid" if is_third else "softmax")
    if scores not in ("sigmoid", "softmax"):
        raise config.error("scoring_func", "must be sigmoid or softmax")
    groups, kept = _read_groups(config, num_experts)
    routing = ExpertRouting(
        top_k=read_top_k(config, num_experts),
        scores=scores,
        renormalize=config.boolean("norm_topk_prob", renormalize),
        scale=config.number("routed_scaling_factor", 1.0),
        num_groups=1 if method == "greedy" else groups,
        top_groups=1 if method == "greedy" else kept,
        group_best=2 if is_third and num_experts > groups else 1,
    )
    size = num_experts // routing.num_groups
    if routing.top_k > routing.top_groups * size:
        raise config.error("num_experts_per_tok", f"must be at most {kept} groups of {size}")
    width = config.integer("moe_intermediate_size")
    made = MoEConfig(
        num_experts=num_experts,
        intermediate_size=width,
        routing=routing,
        choice_bias=is_third,
        shared_size=config.integer("n_shared_experts", 0, minimum=0) * width,
        dense_layers=tuple(range(dense)),
    )
    return None if dense == _num_layers(config) else made


def _num_layers(config: ConfigFields) -> int:
    return config.integer("num_hidden_layers")


def _read_groups(config: ConfigFields, num_experts: int) -> tuple[int, int]:
    groups = config.integer("n_group", 1)
    kept = config.integer("topk_group", 1)
    if num_experts % groups:
        raise config.error("n_group", f"must divide {num_experts} experts")
    if kept > groups:
        raise config.error("topk_group", f"must be at most {groups} groups")
    return groups, kept
