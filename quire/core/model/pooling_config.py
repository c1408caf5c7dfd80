"""The outputs that a checkpoint makes of a prompt's states: a vector, or scores of classes."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.sampling_params import VECTORS


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingConfig:
    """The default way in which a prompt's states become a vector.

    Attributes:
        kind: Kind of pooling, one of :data:`~quire.core.sampling_params.VECTORS`.
        normalize: Whether vectors of any kind are scaled to length 1.
    """

    kind: str = "last"
    normalize: bool = True

    def __post_init__(self) -> None:
        assert self.kind in VECTORS, self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierConfig:
    """A head that gives a logit for each class.

    Attributes:
        labels: Names of the classes, by their numbers.
        state: The token whose state the head is given, ``first`` or ``last``.
        bias: Whether its matrix has one.
        activation: Function that makes probabilities of logits: ``softmax``, ``sigmoid`` or
            ``identity``.
    """

    labels: tuple[str, ...]
    state: str = "last"
    bias: bool = False
    activation: str = "softmax"
