"""Muon: momentum whose matrices are made orthogonal, for the weights of the layers.

Source: Jordan et al. 2024 (Muon); coefficients of the Newton-Schulz iteration from there.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 5
A, B, C = 3.4445, -4.7750, 2.0315


def orthogonalize(g: Tensor) -> Tensor:
    """Return (n, rows, cols) with every singular value near 1, by Newton-Schulz in bfloat16."""
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = A * x + (B * gram + C * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Muon(torch.optim.Optimizer):
    """Orthogonalised Nesterov momentum with decoupled weight decay; matrices only."""

    def __init__(self, params: list[Tensor], lr: float, momentum: float = 0.95, decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self) -> None:
        """Update every matrix; matrices of one shape are orthogonalised together."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for p in group["params"]:
                by_shape.setdefault(p.shape, []).append(p)
            for shape, params in by_shape.items():
                updates = []
                for p in params:
                    momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    momentum.lerp_(p.grad, 1 - group["momentum"])
                    updates.append(p.grad.lerp(momentum, group["momentum"]))
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for p, update in zip(params, orthogonalize(torch.stack(updates)), strict=True):
                    p.mul_(1 - group["lr"] * group["decay"]).add_(update, alpha=-scale)
