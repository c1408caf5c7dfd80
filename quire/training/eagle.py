"""EAGLE: features and tokens through one matrix and one layer, whose output is the next feature.

The feature is what the target's final norm makes of a position, so the target's head reads the
output without a norm of its own. The layer has no norm before its attention.

Source: Li et al. 2024 (EAGLE); names of tensors as in its published checkpoints.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from quire.training.draft_layer import (
    DraftAttention,
    DraftMLP,
    Drafts,
    LayerShape,
    TrainableRMSNorm,
)
from quire.training.recurrent_head import TrainableRecurrentHead
from quire.training.target import HeadVocabulary


class EagleLayer(nn.Module):
    """A Llama layer without ``input_layernorm``."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.self_attn = DraftAttention(shape, shape.hidden_size)
        self.post_attention_layernorm = TrainableRMSNorm(shape)
        self.mlp = DraftMLP(shape)

    def forward(self, x: Tensor, drafts: Drafts) -> Tensor:
        """Map (B, T, D) of genuine pairs, later (B, R, D), to (B, R, D)."""
        x = drafts.rows(x) + self.self_attn(x, drafts)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class EagleHead(TrainableRecurrentHead):
    """See the module."""

    method = "eagle"

    def __init__(self, shape: LayerShape, vocabulary: HeadVocabulary) -> None:
        super().__init__(shape, vocabulary)
        self.fc = nn.Linear(2 * shape.hidden_size, shape.hidden_size, bias=False)
        self.layers = nn.ModuleList([EagleLayer(shape)])

    def features(self, states: Tensor) -> Tensor:
        """Return the final norm's output."""
        return states[..., : self.shape.hidden_size]

    def mix(self, features: Tensor, embeds: Tensor, drafts: Drafts) -> Tensor:
        """``layer(fc([embedding, feature]))``."""
        mixed = self.fc(torch.cat([embeds, features], dim=-1))
        out: Tensor = self.layers[0](mixed, drafts)
        return out

    def logits(self, outputs: Tensor) -> Tensor:
        """Multiply with the target's head."""
        return outputs @ self.vocabulary.head.T

    def settings(self) -> dict[str, Any]:
        """A Llama of one layer; ``bias`` is that of ``fc``."""
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "bias": False}
