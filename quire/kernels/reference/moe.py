"""The meaning of ``kernels/moe.py`` in plain torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat

import numpy as np
import torch

from quire.core.model.moe_config import ExpertRouting
from quire.kernels import moe
from quire.kernels.backend import ProductChange, Weight
from quire.kernels.batch.forward_batch import BatchRows
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.packed_weights import PackedWeights
from quire.kernels.reference.activation import gated
from quire.kernels.reference.linear import ReferenceLinear


def route(
    logits: torch.Tensor, routing: ExpertRouting, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids (T, k) int32 and weights (T, k) of the chosen experts."""
    scores = logits.softmax(-1) if routing.scores == "softmax" else logits.sigmoid()
    choice = scores if bias is None else scores + bias
    size = choice.shape[1] // routing.num_groups
    groups = choice.reshape(-1, routing.num_groups, size)
    best = groups.sort(dim=-1, descending=True).values[..., : routing.group_best].sum(-1)
    order = best.sort(dim=-1, descending=True, stable=True).indices
    dropped = torch.zeros_like(best, dtype=torch.bool)
    dropped.scatter_(-1, order[:, routing.top_groups :], True)
    choice = groups.masked_fill(dropped[..., None], -torch.inf).reshape(choice.shape)
    ids = choice.sort(dim=-1, descending=True, stable=True).indices[:, : routing.top_k]
    weights = scores.gather(-1, ids)
    if routing.renormalize:
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-20)
    return ids.to(torch.int32), weights * routing.scale


class ReferenceExperts:
    """Expert MLPs of one layer, one token and one expert at a time."""

    def __init__(
        self,
        gate_up: Iterable[Sequence[Weight]],
        down: Iterable[Sequence[Weight]],
        activation: str,
        dtype: str | None = None,
        exact_activations: bool = True,
        biases: Iterable[Sequence[HostTensor]] = (),
    ) -> None:
        given = chain(biases, repeat(()))
        self.gate_up, self.down = (
            [
                ReferenceLinear(weights, bias, dtype, exact_activations)
                for weights, bias in zip(side, given, strict=False)
            ]
            for side in (gate_up, down)
        )
        moe.check_experts(self.gate_up, self.down, activation)
        self.activation = activation
        self.nbytes = sum(linear.nbytes for linear in (*self.gate_up, *self.down))
        self.packed: Sequence[Sequence[PackedWeights]] = ()

    def __call__(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
        rows: BatchRows | None = None,
    ) -> torch.Tensor:
        """``out[t] = sum_j weights[t, j] * mlp[ids[t, j]](x[t])``, in the order of j."""
        return self.changed(x, ids, weights, out, _keep, _keep)

    def changed(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
        change_up: ProductChange,
        change_down: ProductChange,
    ) -> torch.Tensor:
        """Do the same, with changes of both products before they are used."""
        moe.check(x, ids, weights, out)
        count, top_k = ids.numel(), ids.shape[1]
        places = np.arange(count, dtype=np.int32).reshape(ids.shape)
        given = x.repeat_interleave(top_k, 0)
        hidden = self._multiply(self.gate_up, ids, given)
        change_up(given, hidden, places)
        middle = gated(hidden, self.activation)
        made = self._multiply(self.down, ids, middle)
        change_down(middle, made, places)
        return combine(made, torch.from_numpy(places), weights, out)

    def _multiply(
        self, linears: Sequence[ReferenceLinear], ids: torch.Tensor, x: torch.Tensor
    ) -> torch.Tensor:
        """Multiply each row with its expert's matrix."""
        y = x.new_empty((len(x), linears[0].out_features))
        for i, expert in enumerate(ids.reshape(-1).tolist()):
            y[i] = linears[expert](x[i : i + 1])[0]
        return y


def combine(
    y: torch.Tensor, places: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """``out[t] = sum_j weights[t, j] * y[places[t, j]]``, in the order of j."""
    result = torch.zeros_like(out)
    for t, own in enumerate(places.tolist()):
        for j, place in enumerate(own):
            result[t] += weights[t, j] * y[place]
    return out.copy_(result)


def _keep(x: torch.Tensor, y: torch.Tensor, places: np.ndarray) -> None:
    """Change nothing."""


class ReferenceGroupedLinear:
    """A matrix of each expert, one row at a time."""

    def __init__(
        self,
        weights: Iterable[Sequence[Weight]],
        dtype: str | None = None,
        exact_activations: bool = True,
        biases: Iterable[Sequence[HostTensor]] = (),
    ) -> None:
        given = chain(biases, repeat(()))
        self._linears = [
            ReferenceLinear(matrices, bias, dtype, exact_activations)
            for matrices, bias in zip(weights, given, strict=False)
        ]
        first = self._linears[0]
        self.in_features, self.out_features = first.in_features, first.out_features
        self.nbytes = sum(linear.nbytes for linear in self._linears)
        self.packed: Sequence[Sequence[PackedWeights]] = ()

    def __call__(self, x: torch.Tensor, starts: Sequence[int], out: torch.Tensor) -> torch.Tensor:
        """Multiply rows (R, in_features), sorted by expert, to (R, out_features)."""
        for linear, begin, end in zip(self._linears, starts, starts[1:], strict=False):
            for row in range(begin, end):
                out[row] = linear(x[row : row + 1])[0]
        return out
