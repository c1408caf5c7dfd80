"""The meaning of ``kernels/moe.py`` in plain torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from quire.kernels import moe
from quire.kernels.backend import Weight
from quire.kernels.packed_weights import PackedWeights
from quire.kernels.reference.activation import gated
from quire.kernels.reference.linear import ReferenceLinear


def route(logits: torch.Tensor, top_k: int, renormalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids (T, k) int32 and weights (T, k) of the best experts."""
    probabilities, ids = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
    weights = probabilities[:, :top_k]
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return ids[:, :top_k].to(torch.int32), weights


class ReferenceExperts:
    """Expert MLPs of one layer, one token and one expert at a time."""

    def __init__(
        self,
        gate_up: Iterable[Sequence[Weight]],
        down: Iterable[Sequence[Weight]],
        activation: str,
        dtype: str | None = None,
        exact_activations: bool = True,
    ) -> None:
        self.gate_up, self.down = (
            [ReferenceLinear(weights, (), dtype, exact_activations) for weights in side]
            for side in (gate_up, down)
        )
        moe.check_experts(self.gate_up, self.down, activation)
        self.activation = activation
        self.nbytes = sum(linear.nbytes for linear in (*self.gate_up, *self.down))
        self.packed: Sequence[Sequence[PackedWeights]] = ()

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        """``out[t] = sum_j weights[t, j] * mlp[ids[t, j]](x[t])``, in the order of j."""
        moe.check(x, ids, weights, out)
        result = torch.zeros_like(out)
        for t in range(x.shape[0]):
            for expert, weight in zip(ids[t].tolist(), weights[t], strict=True):
                hidden = gated(self.gate_up[expert](x[t : t + 1]), self.activation)
                result[t] += weight * self.down[expert](hidden)[0]
        return out.copy_(result)
