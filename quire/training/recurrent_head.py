"""Heads that draft one token after the other: what EAGLE, EAGLE-3 and MTP modules have in common.

B sequences, T positions, D model dim, S width of what is kept of the target, V vocabulary.

**Pairs.** At position i such a head reads (feature of position i - 1, embedding of token i),
attends to the pairs at 0 .. i and predicts token i + 1. The target's features make genuine pairs;
the head's own output at i is the feature of position i for the next pair of a draft. The pair at
position 0 has a feature of zeros. Published code numbers a pair by its feature, one lower, and has
none without a feature; the rotary embedding tells positions apart by their distance only, so that
its weights mean the same here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from quire.training.draft_layer import Drafts, LayerShape
from quire.training.target import HeadVocabulary


class TrainableRecurrentHead(nn.Module, ABC):
    """A head with one decoder layer.

    Args:
        shape: Shape of the layer.
        vocabulary: The target's, which is not trained.

    Attributes:
        method: The head's name in ``--speculative-config``.
        captured_layers: Layers of the target whose entering residual stream the head reads.
    """

    method: str
    captured_layers: tuple[int, ...] = ()

    def __init__(self, shape: LayerShape, vocabulary: HeadVocabulary) -> None:
        super().__init__()
        self.shape = shape
        self.vocabulary = vocabulary

    @abstractmethod
    def features(self, states: Tensor) -> Tensor:
        """Return (..., D) features made of the target's states (..., S)."""

    @abstractmethod
    def mix(self, features: Tensor, embeds: Tensor, drafts: Drafts) -> Tensor:
        """Return the outputs (B, R, D) of the next depth.

        ``features`` and ``embeds`` are (B, T, D) of the genuine pairs, later (B, R, D) of the
        drafts' own.
        """

    @abstractmethod
    def logits(self, outputs: Tensor) -> Tensor:
        """Return (..., V) for outputs (..., D)."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return what ``config.json`` says of this kind besides the shape."""

    def scale_to(self, states: Tensor) -> None:
        """Prepare for features of the size of those of states (T, S); before training."""

    def published(self) -> dict[str, Tensor]:
        """Return the weights as they are stored, under the names of ``state_dict``."""
        return self.state_dict()

    def tensor_prefix(self) -> str:
        """Return what the published layout writes before the names of ``state_dict``."""
        return ""

    def genuine(self, states: Tensor) -> Tensor:
        """Return the features (B, T, D) of the genuine pairs of states (B, T, S): one to the right.

        Position 0 gets zeros.
        """
        features = self.features(states)
        return torch.cat([torch.zeros_like(features[:, :1]), features[:, :-1]], dim=1)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Look (...) ids up as (..., D)."""
        return self.vocabulary.embedding[token_ids]
