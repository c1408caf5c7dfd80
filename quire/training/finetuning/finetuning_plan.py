"""The plan of a fine-tuning: method, steps and sizes; not what it reads or writes."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuningPlan:
    """One training.

    Attributes:
        method: ``qat`` or ``qlora``.
        steps: Steps of the optimizer.
        learning_rate: The highest rate; it rises over the first steps and falls to 0.
        batch_size: Windows of a step.
        sequence_length: Tokens of a window.
        seed: Seed of the order of windows, of dropout, and of adapters' first weights.
        rank: Rank of adapters; 0 where there are none.
        alpha: Numerator of ``alpha / rank``, by which adapters are scaled.

    Raises:
        ConfigError: A number is out of range.
    """

    method: str
    steps: int
    learning_rate: float
    batch_size: int
    sequence_length: int
    seed: int
    rank: int = 0
    alpha: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < 1:
            raise ConfigError(
                f"[finetune] --learning-rate must be over 0 and under 1; got {self.learning_rate}."
            )
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"[finetune] --seed must be from 0 to 4294967295; got {self.seed}.")
