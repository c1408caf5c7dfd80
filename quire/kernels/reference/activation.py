"""The meaning of ``kernels/activation.py`` in plain torch."""

from __future__ import annotations

import math

import torch


def activate(x: torch.Tensor, activation: str) -> torch.Tensor:
    """Return ``act(x)`` elementwise."""
    if activation == "silu":
        return x / (1.0 + torch.exp(-x))
    if activation == "gelu":
        return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))
    return x * 0.5 * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def gated(x: torch.Tensor, activation: str) -> torch.Tensor:
    """Return ``act(left half) * right half`` of the last dim."""
    gate, up = x.chunk(2, dim=-1)
    return activate(gate, activation) * up
