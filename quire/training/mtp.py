"""An MTP module: a whole layer of the target's kind over a mix of embedding and feature.

The feature is what the target's final norm makes of a position, and the module's own output before
its last norm in a draft.

Source: DeepSeek-AI 2024 (DeepSeek-V3); tensors named as there, with attention as in Llama and GLM.
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


class SharedHead(nn.Module):
    """The norm before the head that is shared with the target."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.norm = TrainableRMSNorm(shape)


class MTPHead(TrainableRecurrentHead):
    """See the module.

    Args:
        shape: Shape of the layer.
        vocabulary: The target's.
        num_target_layers: Number of the target's layers; the module is stored as the layer after
            them.
    """

    method = "mtp"

    def __init__(
        self, shape: LayerShape, vocabulary: HeadVocabulary, num_target_layers: int
    ) -> None:
        super().__init__(shape, vocabulary)
        self.num_target_layers = num_target_layers
        self.enorm = TrainableRMSNorm(shape)
        self.hnorm = TrainableRMSNorm(shape)
        self.eh_proj = nn.Linear(2 * shape.hidden_size, shape.hidden_size, bias=False)
        self.input_layernorm = TrainableRMSNorm(shape)
        self.self_attn = DraftAttention(shape, shape.hidden_size)
        self.post_attention_layernorm = TrainableRMSNorm(shape)
        self.mlp = DraftMLP(shape)
        self.shared_head = SharedHead(shape)
        with torch.no_grad():
            self.shared_head.norm.weight.copy_(vocabulary.norm)

    def features(self, states: Tensor) -> Tensor:
        """Return the final norm's output."""
        return states[..., : self.shape.hidden_size]

    def mix(self, features: Tensor, embeds: Tensor, drafts: Drafts) -> Tensor:
        """``layer(eh_proj([enorm(embedding), hnorm(feature)]))``."""
        x = self.eh_proj(torch.cat([self.enorm(embeds), self.hnorm(features)], dim=-1))
        x = drafts.rows(x) + self.self_attn(self.input_layernorm(x), drafts)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out

    def logits(self, outputs: Tensor) -> Tensor:
        """Multiply ``shared_head.norm`` of the outputs with the target's head."""
        normed: Tensor = self.shared_head.norm(outputs)
        return normed @ self.vocabulary.head.T

    def settings(self) -> dict[str, Any]:
        """One module after the target's layers."""
        return {
            "architectures": ["DeepSeekMTPModel"],
            "model_type": "deepseek_mtp",
            "num_nextn_predict_layers": 1,
            "num_hidden_layers": self.num_target_layers,
        }

    def tensor_prefix(self) -> str:
        """``model.layers.L.``, L being the target's layers."""
        return f"model.layers.{self.num_target_layers}."
