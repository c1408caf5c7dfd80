"""Reads the mixture of experts of a ``config.json``, as far as several families have the fields."""

from __future__ import annotations

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.moe_config import ExpertRouting, MoEConfig


def read_top_k(config: ConfigFields, num_experts: int, default: int | None = None) -> int:
    """Read how many experts a token takes."""
    top_k = config.integer("num_experts_per_tok", default)
    if top_k > num_experts:
        raise config.error(
            "num_experts_per_tok", f"must be at most the number of experts ({num_experts})"
        )
    return top_k


def read_deepseek_experts(config: ConfigFields, *, renormalize: bool) -> MoEConfig | None:
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
        most = routing.top_groups * size
        rule = f"must be at most {most}, the experts of topk_group ({kept}) groups"
        raise config.error("num_experts_per_tok", rule)
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
        raise config.error("n_group", f"must divide the number of experts ({num_experts})")
    if kept > groups:
        raise config.error("topk_group", f"must be at most n_group ({groups})")
    return groups, kept
