"""The meaning of ``kernels/activation.py`` in plain torch."""

from __future__ import annotations

import math

import torch

from quire.kernels.activation import SIGMOID_FACTOR, SWIGLU_LIMIT


def activate(x: torch.Tensor, activation: str) -> torch.Tensor:
    """Return ``act(x)`` elementwise."""
    if activation == "silu":
        return x / (1.0 + torch.exp(-x))
    if activation == "gelu":
        return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))
    if activation == "quick_gelu":
        return x / (1.0 + torch.exp(-SIGMOID_FACTOR * x))
    return x * 0.5 * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def gated(x: torch.Tensor, activation: str) -> torch.Tensor:
    """Return ``act(left half) * right half`` of the last dim."""
    gate, up = x.chunk(2, dim=-1)
    if activation == "clamped_swiglu":
        gate, up = gate.clamp(max=SWIGLU_LIMIT), up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
        return gate * torch.sigmoid(SIGMOID_FACTOR * gate) * (up + 1.0)
    return activate(gate, activation) * up
