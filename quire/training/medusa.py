"""Medusa: heads that each predict one of the next tokens from the target's last state alone.

Head k (from 0) reads the final norm's output at position i and predicts token i + 2 + k, for the
target itself predicts i + 1.

Source: Cai et al. 2024 (Medusa); names of tensors as in its published checkpoints. Heads without
an output matrix use the target's, which vLLM's reader knows as ``original_lm_head``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from quire.training.target import HeadVocabulary


class ResidualBlock(nn.Module):
    """``x + silu(linear(x))``; the identity at first."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., D) to (..., D)."""
        return x + functional.silu(self.linear(x))


class TrainableMedusaHeads(nn.Module):
    """See the module.

    Args:
        vocabulary: The target's.
        num_heads: Tokens that are drafted.
        num_layers: Residual blocks of each head.
        own_head: Whether each head has an output matrix of its own, begun as the target's.
    """

    method = "medusa"
    captured_layers: tuple[int, ...] = ()

    def __init__(
        self,
        vocabulary: HeadVocabulary,
        num_heads: int,
        num_layers: int = 1,
        own_head: bool = False,
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.num_layers = num_layers
        self.own_head = own_head
        size, hidden_size = vocabulary.head.shape
        self.heads = nn.ModuleList(
            nn.ModuleList(ResidualBlock(hidden_size) for _ in range(num_layers))
            for _ in range(num_heads)
        )
        if own_head:
            for head in self.heads:
                assert isinstance(head, nn.ModuleList)
                matrix = nn.Linear(hidden_size, size, bias=False)
                with torch.no_grad():
                    matrix.weight.copy_(vocabulary.head)
                head.append(matrix)

    def logits(self, states: Tensor, head: int) -> Tensor:
        """Return (..., V) of one head for states (..., D)."""
        for module in self.heads[head].children():
            states = module(states)
        return states if self.own_head else states @ self.vocabulary.head.T

    def settings(self) -> dict[str, Any]:
        """The published keys; ``medusa_fc_bias`` and ``original_lm_head`` are vLLM's."""
        return {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "hidden_size": self.vocabulary.head.shape[1],
            "vocab_size": self.vocabulary.head.shape[0],
            "medusa_num_heads": len(self.heads),
            "medusa_num_layers": self.num_layers,
            "medusa_fc_bias": True,
            "original_lm_head": not self.own_head,
        }

    def published(self) -> dict[str, Tensor]:
        """``0.0.linear.weight``, where the module says ``heads.0.0.linear.weight``."""
        return {name.removeprefix("heads."): part for name, part in self.state_dict().items()}
