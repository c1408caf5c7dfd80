"""The description of a mixture of experts in our own terms; a part of a model's configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRouting:
    """The choice of experts by a router's logits; ``kernels/moe.py`` has the maths.

    Attributes:
        top_k: Experts used per token.
        scores: Function of the logits, ``softmax`` or ``sigmoid``.
        renormalize: Whether the chosen experts' weights are scaled to sum to 1.
        scale: Factor that the weights are multiplied by then.
        num_groups: Number of groups of neighbours that experts are divided into.
        top_groups: Number of groups whose experts are chosen from.
        group_best: Number of a group's best scores whose sum the group counts as, 1 or 2.
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
        routing: The choice of experts for a token.
        router_bias: Whether the router has a bias.
        choice_bias: Whether scores have a bias that only chooses (DeepSeek V3).
        expert_bias: Whether experts' projections have a bias.
        weighs_inputs: Whether weights multiply inputs of experts, not outputs (Llama 4); of one
            expert per token.
        shared_size: Width of the experts that are always on, taken as one; 0 without.
        shared_gate: Whether a sigmoid weighs their output (Qwen2-MoE).
        dense_layers: Layers that have an MLP instead, in order.
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
