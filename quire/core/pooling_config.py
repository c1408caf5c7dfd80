"""What a checkpoint makes of a prompt's states: a vector, or scores of classes; no arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.sampling_params import VECTORS


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingConfig:
    """How a prompt's states become a vector where a request does not say.

    Attributes:
        kind: One of :data:`~quire.core.sampling_params.VECTORS`.
        normalize: Vectors of any kind are scaled to length 1.
    """

    kind: str = "last"
    normalize: bool = True

    def __post_init__(self) -> None:
        assert self.kind in VECTORS, self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierConfig:
    """A head that gives a logit for each class.

    Attributes:
        labels: Of the classes, by their numbers.
        state: Whose state it is given: ``first`` or ``last`` token's.
        bias: Whether its matrix has one.
        activation: What makes probabilities of logits: ``softmax``, ``sigmoid`` or ``identity``.
    """

    labels: tuple[str, ...]
    state: str = "last"
    bias: bool = False
    activation: str = "softmax"
