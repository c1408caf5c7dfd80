"""Mixture of experts on the native kernels: rows grouped by expert, one product per expert."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.kernels import moe
from quire.kernels.activation import ACTIVATIONS
from quire.kernels.backend import Linear
from quire.kernels.cpu.native import native


class CpuExperts:
    """Expert MLPs of one layer; see ``kernels/moe.py`` for the maths."""

    def __init__(self, gate_up: Sequence[Linear], down: Sequence[Linear], activation: str) -> None:
        moe.check_experts(gate_up, down, activation)
        self._gate_up = gate_up
        self._down = down
        self._activation = ACTIVATIONS.index(activation)

    def __call__(
        self, x: np.ndarray, ids: np.ndarray, weights: np.ndarray, out: np.ndarray
    ) -> np.ndarray:
        """``out[t] = sum_j weights[t, j] * mlp[ids[t, j]](x[t])``, summed in the order of j."""
        moe.check(x, ids, weights, out)
        num_rows, width = x.shape
        top_k = ids.shape[1]
        if ids.size and not 0 <= ids.min() <= ids.max() < len(self._down):
            raise moe.refuse_expert(len(self._down))
        order = np.argsort(ids, axis=None, kind="stable").astype(np.int32)
        ends = np.cumsum(np.bincount(ids.ravel(), minlength=len(self._down)))
        grouped = np.empty((num_rows * top_k, width), np.float32)
        native.gather_rows(x, num_rows, order // np.int32(top_k), len(order), width, grouped)
        middle = self._down[0].in_features
        hidden = np.empty((len(order), 2 * middle), np.float32)
        activated = np.empty((len(order), middle), np.float32)
        groups = [
            (expert, slice(start, end))
            for expert, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
            if start < end
        ]
        for expert, rows in groups:
            self._gate_up[expert](grouped[rows], hidden[rows])
        native.gated_activation(hidden, self._activation, len(order), middle, activated)
        for expert, rows in groups:
            self._down[expert](activated[rows], grouped[rows])
        index = np.empty(len(order), np.int32)
        index[order] = np.arange(len(order), dtype=np.int32)
        native.combine_experts(grouped, index, weights, num_rows, top_k, width, out)
        return out
