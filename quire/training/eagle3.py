"""EAGLE-3: features of three depths of the target, a layer over embedding and feature side by side.

The output before the last norm is the next feature. A draft vocabulary may be smaller than the
target's: ``d2t[i] + i`` is the target's id of draft token i, ``t2d`` says which ids have one.

Source: Li et al. 2025 (EAGLE-3); names of tensors as in its published checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
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


class Eagle3Layer(nn.Module):
    """A Llama layer whose attention reads embedding and feature, each with a norm of its own."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.input_layernorm = TrainableRMSNorm(shape)
        self.hidden_norm = TrainableRMSNorm(shape)
        self.self_attn = DraftAttention(shape, 2 * shape.hidden_size)
        self.post_attention_layernorm = TrainableRMSNorm(shape)
        self.mlp = DraftMLP(shape)

    def forward(self, features: Tensor, embeds: Tensor, drafts: Drafts) -> Tensor:
        """Map two (B, T, D), later (B, R, D), to (B, R, D); the features are the residual."""
        wide = torch.cat([self.input_layernorm(embeds), self.hidden_norm(features)], dim=-1)
        x = drafts.rows(features) + self.self_attn(wide, drafts)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Eagle3Head(TrainableRecurrentHead):
    """See the module.

    Args:
        shape: Shape of the layer.
        vocabulary: The target's.
        captured_layers: Three of the target's.
        draft_ids: (W,) int64 ascending ids of the target that can be drafted; None for all.
        own_head: Whether the head has an output head of its own, begun as the target's.
    """

    method = "eagle3"

    def __init__(
        self,
        shape: LayerShape,
        vocabulary: HeadVocabulary,
        captured_layers: Sequence[int],
        draft_ids: Tensor | None = None,
        own_head: bool = False,
    ) -> None:
        super().__init__(shape, vocabulary)
        self.captured_layers = tuple(captured_layers)
        width = len(self.captured_layers) * shape.hidden_size
        self.fc = nn.Linear(width, shape.hidden_size, bias=False)
        self.input_scale = torch.ones(width)
        self.midlayer = Eagle3Layer(shape)
        self.norm = TrainableRMSNorm(shape)
        with torch.no_grad():
            self.norm.weight.copy_(vocabulary.norm)
        self.lm_head: nn.Linear | None = None
        size = len(vocabulary.head)
        self.draft_ids = torch.arange(size) if draft_ids is None else draft_ids
        if own_head or draft_ids is not None:
            self.lm_head = nn.Linear(shape.hidden_size, len(self.draft_ids), bias=False)
            with torch.no_grad():
                self.lm_head.weight.copy_(vocabulary.head[self.draft_ids])
        if draft_ids is not None:
            self.register_buffer("d2t", draft_ids - torch.arange(len(draft_ids)))
            known = torch.zeros(size, dtype=torch.bool)
            known[draft_ids] = True
            self.register_buffer("t2d", known)

    def features(self, states: Tensor) -> Tensor:
        """``fc`` of the captured layers."""
        out: Tensor = self.fc(states[..., self.shape.hidden_size :] * self.input_scale)
        return out

    def scale_to(self, states: Tensor) -> None:
        """Train ``fc`` on inputs of mean square 1 in each layer, as those of states (T, S) are.

        The residual stream grows with depth: unscaled, features would be large next to what the
        layer adds to them. The stored ``fc`` has the scale in it.
        """
        shape = len(states), len(self.captured_layers), self.shape.hidden_size
        captured = states[:, self.shape.hidden_size :].reshape(shape)
        scale = captured.square().mean((0, 2)).rsqrt()
        self.input_scale = scale.repeat_interleave(self.shape.hidden_size)

    def published(self) -> dict[str, Tensor]:
        """``fc`` has the scale of its inputs in it."""
        state = self.state_dict()
        return state | {"fc.weight": state["fc.weight"] * self.input_scale}

    def mix(self, features: Tensor, embeds: Tensor, drafts: Drafts) -> Tensor:
        """``midlayer(feature, embedding)``."""
        out: Tensor = self.midlayer(features, embeds, drafts)
        return out

    def logits(self, outputs: Tensor) -> Tensor:
        """Head of the norm, -inf for ids outside of the draft vocabulary."""
        normed: Tensor = self.norm(outputs)
        if self.lm_head is None:
            return normed @ self.vocabulary.head.T
        drafted: Tensor = self.lm_head(normed)
        if len(self.draft_ids) == len(self.vocabulary.head):
            return drafted
        shape = *drafted.shape[:-1], len(self.vocabulary.head)
        return drafted.new_full(shape, -torch.inf).index_copy(-1, self.draft_ids, drafted)

    def settings(self) -> dict[str, Any]:
        """Layer ids are at the top, as ``speculators`` writes them, and in ``eagle_config``."""
        layers = list(self.captured_layers)
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "draft_vocab_size": len(self.draft_ids),
            "norm_before_residual": False,
            "eagle_aux_hidden_state_layer_ids": layers,
            "eagle_config": {
                "use_aux_hidden_state": True,
                "eagle_aux_hidden_state_layer_ids": layers,
            },
        }
