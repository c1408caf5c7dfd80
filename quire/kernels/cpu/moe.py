"""Mixture of experts on the native kernels: one call sorts the rows and multiplies all experts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat

import numpy as np

from quire.core.errors import UnsupportedInputError
from quire.core.model.moe_config import ExpertRouting
from quire.kernels import moe
from quire.kernels.activation import ACTIVATIONS
from quire.kernels.backend import ProductChange, Weight
from quire.kernels.batch.forward_batch import BatchRows
from quire.kernels.cpu.linear import CpuLinear
from quire.kernels.cpu.native import native
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.packed_weights import PackedWeights


def route(
    logits: np.ndarray, routing: ExpertRouting, bias: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return ids (T, k) int32 and weights (T, k) of the chosen experts."""
    shape = len(logits), routing.top_k
    ids, weights = np.empty(shape, np.int32), np.empty(shape, np.float32)
    native.route(
        logits,
        *logits.shape,
        routing.top_k,
        moe.SCORES.index(routing.scores),
        bias,
        (routing.num_groups, routing.top_groups, routing.group_best),
        routing.renormalize,
        routing.scale,
        ids,
        weights,
    )
    return ids, weights


class CpuExperts:
    """Expert MLPs of one layer; see ``kernels/moe.py`` for the maths."""

    def __init__(
        self,
        gate_up: Iterable[Sequence[Weight]],
        down: Iterable[Sequence[Weight]],
        activation: str,
        dtype: str | None = None,
        exact_activations: bool = False,
        biases: Iterable[Sequence[HostTensor]] = (),
    ) -> None:
        given = chain(biases, repeat(()))
        ups, downs = (
            [
                CpuLinear(weights, bias, dtype, exact_activations)
                for weights, bias in zip(side, given, strict=False)
            ]
            for side in (gate_up, down)
        )
        moe.check_experts(ups, downs, activation)
        for packed in (packed for linear in (*ups, *downs) for packed in linear.packed):
            if packed.form is not None and packed.form.rotation is not None:
                raise UnsupportedInputError(
                    f"[experts] matrices must not be rotated; got {packed.name}, {packed.form}. "
                    "Leave experts in another format."
                )
        self._num_experts = len(downs)
        self._middle = downs[0].in_features
        linears = (*ups, *downs)
        self.nbytes = sum(linear.nbytes for linear in linears)
        self.packed: Sequence[Sequence[PackedWeights]] = [linear.packed for linear in linears]
        self._stack = native.Experts(
            ups[0].in_features,
            self._middle,
            ACTIVATIONS.index(activation),
            [linear.matrices for linear in ups],
            [linear.matrices for linear in downs],
        )

    def __call__(
        self,
        x: np.ndarray,
        ids: np.ndarray,
        weights: np.ndarray,
        out: np.ndarray,
        rows: BatchRows | None = None,
    ) -> np.ndarray:
        """``out[t] = sum_j weights[t, j] * mlp[ids[t, j]](x[t])``, summed in the order of j."""
        moe.check(x, ids, weights, out)
        buffers = self._buffers(x, ids)
        if not self._stack.run(x, ids, weights, *ids.shape, *buffers, out):
            raise moe.refuse_expert(self._num_experts)
        return out

    def changed(
        self,
        x: np.ndarray,
        ids: np.ndarray,
        weights: np.ndarray,
        out: np.ndarray,
        change_up: ProductChange,
        change_down: ProductChange,
    ) -> np.ndarray:
        """Do the same, with changes of both products before they are used."""
        moe.check(x, ids, weights, out)
        grouped, hidden, activated = self._buffers(x, ids)
        places = np.empty(ids.shape, np.int32)
        if not self._stack.gate_up(x, ids, *ids.shape, grouped, hidden, places):
            raise moe.refuse_expert(self._num_experts)
        change_up(grouped, hidden, places)
        self._stack.down(ids, *ids.shape, hidden, activated, grouped)
        change_down(activated, grouped, places)
        self._stack.combine(ids, weights, *ids.shape, grouped, out)
        return out

    def _buffers(self, x: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return memory of routed rows: (T k, D), (T k, 2 M) and (T k, M)."""
        widths = (x.shape[1], 2 * self._middle, self._middle)
        return tuple(np.empty((ids.size, width), np.float32) for width in widths)


class CpuGroupedLinear:
    """A matrix of each expert; see :class:`quire.kernels.backend.GroupedLinear`."""

    def __init__(
        self,
        weights: Iterable[Sequence[Weight]],
        dtype: str | None = None,
        exact_activations: bool = False,
        biases: Iterable[Sequence[HostTensor]] = (),
    ) -> None:
        given = chain(biases, repeat(()))
        linears = [
            CpuLinear(matrices, bias, dtype, exact_activations)
            for matrices, bias in zip(weights, given, strict=False)
        ]
        self.in_features, self.out_features = linears[0].in_features, linears[0].out_features
        self.nbytes = sum(linear.nbytes for linear in linears)
        self.packed: Sequence[Sequence[PackedWeights]] = [linear.packed for linear in linears]
        stacks = [linear.matrices for linear in linears]
        self._matrices = native.GroupedLinear(self.in_features, self.out_features, stacks)

    def __call__(self, x: np.ndarray, starts: Sequence[int], out: np.ndarray) -> np.ndarray:
        """Multiply rows (R, in_features), sorted by expert, to (R, out_features)."""
        self._matrices.multiply(x, starts, len(x), out)
        return out
