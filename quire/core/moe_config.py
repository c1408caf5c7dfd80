"""What a mixture of experts looks like, in our own words; a part of a model's configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRouting:
    """How a router's logits choose experts; ``kernels/moe.py`` has the maths.

    Attributes:
        top_k: Experts used per token.
        scores: ``softmax`` or ``sigmoid`` of the logits.
        renormalize: Whether the chosen experts' weights are scaled to sum to 1.
        scale: Multiplies the weights then.
        num_groups: Experts are that many groups of neighbours.
        top_groups: Groups of which experts are chosen.
        group_best: A group counts as the sum of that many of its best scores, 1 or 2.
    """

    top_k: int
    scores: str = "softmax"
    renormalize: bool = True
    scale: float = 1.0
    num_groups: int = 1
    top_groups: int = 1
    group_best: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEConfig:
    """Mixture of experts in place of the MLP.

    Attributes:
        num_experts: Experts per layer, those not counted that are always on.
        intermediate_size: Width of one expert.
        routing: How some are chosen.
        router_bias: Whether the router has a bias.
        choice_bias: Whether scores have a bias that only chooses (DeepSeek V3).
        expert_bias: Whether experts' projections have a bias.
        weighs_inputs: Weights multiply what experts are given, not what they give (Llama 4); of one
            expert per token.
        shared_size: Width of the experts that are always on, taken as one; 0 without.
        shared_gate: Whether a sigmoid weighs what those give (Qwen2-MoE).
        dense_layers: Those that have an MLP instead, in order.
    """

    num_experts: int
    intermediate_size: int
    routing: ExpertRouting
    router_bias: bool = False
    choice_bias: bool = False
    expert_bias: bool = False
    weighs_inputs: bool = False
    shared_size: int = 0
    shared_gate: bool = False
    dense_layers: tuple[int, ...] = ()

    @property
    def top_k(self) -> int:
        """Experts used per token, those not counted that are always on."""
        return self.routing.top_k
