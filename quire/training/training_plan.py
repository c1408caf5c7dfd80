"""The plan of a training: the kind of head, its size, its objective."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from quire.core.errors import ConfigError
from quire.core.model.model_config import ModelConfig
from quire.training.draft_layer import LayerShape
from quire.training.eagle import EagleHead
from quire.training.eagle3 import Eagle3Head
from quire.training.head_files import Head
from quire.training.medusa import TrainableMedusaHeads
from quire.training.mtp import MTPHead
from quire.training.objectives import Objective
from quire.training.target import HeadVocabulary, default_layers
from quire.training.trainer import Budget

METHODS = ("eagle3", "eagle", "medusa", "mtp")
#: Tokens drafted in training. EAGLE was published with one; its own features pay there, too.
DEPTHS = {"eagle3": 5, "eagle": 3, "medusa": 4, "mtp": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """One training.

    Attributes:
        method: One of :data:`METHODS`.
        budget: Budget of the training itself.
        depth: Tokens drafted in training, and Medusa's number of heads; None for the method's
            default.
        layers: Captured layers; empty for the method's default.
        intermediate_size, num_attention_heads, num_key_value_heads: Sizes of the layer; None for
            the target's.
        num_blocks: Residual blocks of each Medusa head.
        own_head: Whether Medusa heads and EAGLE-3 have an output matrix of their own.
        rate: Factor of the learning rates.
        seed: Seed of the first weights.
    """

    method: str
    budget: Budget
    depth: int | None = None
    layers: tuple[int, ...] = ()
    intermediate_size: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    num_blocks: int = 1
    own_head: bool = False
    rate: float = 1.0
    seed: int = 1

    def settle(self, config: ModelConfig) -> TrainingPlan:
        """Return the plan for a target, with nothing left open.

        Raises:
            ConfigError: The method is unknown, or a size cannot be.
        """
        if self.method not in METHODS:
            raise ConfigError(
                f"[train-heads] method must be one of {', '.join(METHODS)}; got {self.method}."
            )
        plan = replace(
            self,
            depth=self.depth or DEPTHS[self.method],
            intermediate_size=self.intermediate_size or config.intermediate_size,
            num_attention_heads=self.num_attention_heads or config.num_heads,
            num_key_value_heads=self.num_key_value_heads or config.num_kv_heads,
        )
        if not plan.layers and plan.method == "eagle3":
            plan = replace(plan, layers=default_layers(config.num_layers))
        assert plan.num_attention_heads and plan.num_key_value_heads
        if plan.num_attention_heads % plan.num_key_value_heads:
            raise ConfigError(
                "[train-heads] the number of KV heads must divide that of query heads; got "
                f"{plan.num_key_value_heads} and {plan.num_attention_heads}."
            )
        return plan

    def objective(self) -> Objective:
        """Return how this kind is trained; of a settled plan."""
        assert self.depth is not None
        return Objective(self.depth, regression=1.0 if self.method == "eagle" else 0.0)

    def lines(self) -> dict[str, Any]:
        """Return the settings that a training which goes on must share, all but the budget."""
        lines = asdict(self)
        del lines["budget"]
        return lines | {"layers": list(self.layers)}


def create_head(plan: TrainingPlan, config: ModelConfig, vocabulary: HeadVocabulary) -> Head:
    """Make the untrained head of a settled plan."""
    assert plan.depth is not None
    if plan.method == "medusa":
        return TrainableMedusaHeads(vocabulary, plan.depth, plan.num_blocks, plan.own_head)
    assert plan.intermediate_size and plan.num_attention_heads and plan.num_key_value_heads
    shape = LayerShape(
        hidden_size=config.hidden_size,
        intermediate_size=plan.intermediate_size,
        num_attention_heads=plan.num_attention_heads,
        num_key_value_heads=plan.num_key_value_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.norm_eps,
        rope_theta=config.rope.theta if config.rope else 10000.0,
    )
    if plan.method == "eagle":
        return EagleHead(shape, vocabulary)
    if plan.method == "mtp":
        return MTPHead(shape, vocabulary, config.num_layers)
    return Eagle3Head(shape, vocabulary, plan.layers, own_head=plan.own_head)
