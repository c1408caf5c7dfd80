"""Muon: momentum whose matrices are made orthogonal, for the weights of the layers.

Source: Jordan et al. 2024 (Muon); coefficients of the Newton-Schulz iteration from there.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor as Pool

import torch
from torch import Tensor

from tools.quire_tiny.model import PRECISION

STEPS = 5
MOMENTUM, DECAY = 0.95, 0.01
A, B, C = 3.4445, -4.7750, 2.0315


@torch.no_grad()
def orthogonalize(g: Tensor) -> Tensor:
    """Return (rows, cols) with every singular value near 1, by Newton-Schulz."""
    x = g.to(PRECISION)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = A * x + (B * gram + C * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Muon(torch.optim.Optimizer):
    """Orthogonalised Nesterov momentum with decoupled weight decay; matrices only."""

    def __init__(self, params: list[Tensor], lr: float, pool: Pool) -> None:
        super().__init__(params, {"lr": lr, "momentum": MOMENTUM, "decay": DECAY})
        self.pool = pool

    @torch.no_grad()
    def step(self) -> None:
        """Update every matrix; the threads of the pool share the iterations."""
        for group in self.param_groups:
            updates = []
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.lerp_(p.grad, 1 - group["momentum"])
                updates.append(p.grad.lerp(momentum, group["momentum"]))
            for p, update in zip(
                group["params"], self.pool.map(orthogonalize, updates), strict=True
            ):
                scale = group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5
                p.mul_(1 - group["lr"] * group["decay"]).add_(update, alpha=-scale)
