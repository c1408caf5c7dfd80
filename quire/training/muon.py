"""Muon: momentum whose matrices are made orthogonal, for the matrices of layers.

Source: Jordan et al. 2024 (Muon); coefficients of the Newton-Schulz iteration from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

#: Without instructions for it, torch emulates bfloat16 at a fraction of the speed of float32.
PRECISION = torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32
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
    made: Tensor = (x.mT if tall else x).float()
    return made


class Muon(torch.optim.Optimizer):
    """Orthogonalised Nesterov momentum with decoupled weight decay; matrices only.

    Args:
        params: Matrices.
        lr: Learning rate.
        map_: A function that applies another to each of many tensors; a pool's uses its threads.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        map_: Callable[[Callable[[Tensor], Tensor], list[Tensor]], Iterable[Tensor]] = map,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": MOMENTUM, "decay": DECAY})
        self._map = map_

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every matrix; ``closure`` is not called."""
        for group in self.param_groups:
            used = [p for p in group["params"] if p.grad is not None]
            updates = []
            for p in used:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.lerp_(p.grad, 1 - group["momentum"])
                updates.append(p.grad.lerp(momentum, group["momentum"]))
            for p, update in zip(used, self._map(orthogonalize, updates), strict=True):
                scale = group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5
                p.mul_(1 - group["lr"] * group["decay"]).add_(update, alpha=-scale)
