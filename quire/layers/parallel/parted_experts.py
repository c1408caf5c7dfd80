"""Experts that every rank has a part of each; bit for bit those of one process.

The outputs of both products are divided, as in a dense MLP: the ranks' parts of the middle are
gathered, and so are their parts of the outputs. T rows, k experts of each, R = T k routed rows, M
width of an expert, D model dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.distributed.group import Group
from quire.kernels.backend import Array, Backend, GroupedLinear, ProductChange
from quire.kernels.batch.forward_batch import BatchRows
from quire.layers.parallel.parallel_linear import Scratch


@dataclass(frozen=True, slots=True)
class PartedExperts:
    """A rank's part of each expert.

    Attributes:
        gate_up: The product of D to this rank's gate and up of each expert.
        down: The product of M to this rank's outputs of each expert.
        activation: The activation between both products.
        inner, outputs: Widths of the parts of M and of D, by rank.
    """

    gate_up: GroupedLinear
    down: GroupedLinear
    activation: str
    inner: Sequence[int]
    outputs: Sequence[int]


class SplitExperts:
    """The experts of a layer; see :class:`quire.kernels.backend.Experts`.

    Args:
        backend: The backend that computes.
        group: The ranks.
        scratch: Memory for messages.
        parts: The part of each expert on this rank.
    """

    def __init__(
        self, backend: Backend, group: Group, scratch: Scratch, parts: PartedExperts
    ) -> None:
        self._backend, self._group, self._scratch, self._parts = backend, group, scratch, parts
        self.nbytes = parts.gate_up.nbytes + parts.down.nbytes
        self.packed = [*parts.gate_up.packed, *parts.down.packed]
        self._num_experts = len(parts.down.packed)

    def __call__(
        self, x: Array, ids: Array, weights: Array, out: Array, rows: BatchRows | None = None
    ) -> Array:
        """Mix the experts of each row."""
        return self.changed(x, ids, weights, out, _keep, _keep)

    def changed(
        self,
        x: Array,
        ids: Array,
        weights: Array,
        out: Array,
        change_up: ProductChange,
        change_down: ProductChange,
    ) -> Array:
        """Do the same, with changes of this rank's part of both products."""
        backend, group, parts, take = self._backend, self._group, self._parts, self._scratch.take
        flat = backend.to_numpy(ids).reshape(-1)
        order, count = np.argsort(flat, kind="stable"), len(flat)
        starts = np.searchsorted(flat[order], np.arange(self._num_experts + 1)).tolist()
        places = np.empty(count, np.int32)
        places[order] = np.arange(count, dtype=np.int32)
        places = places.reshape(ids.shape)
        given = take("inputs", count, x.shape[1])
        backend.gather_rows(x, (order // ids.shape[1]).astype(np.int32), given)
        hidden = parts.gate_up(given, starts, take("hidden", count, parts.gate_up.out_features))
        change_up(given, hidden, places)
        own = take("outputs", count, parts.inner[group.rank])
        backend.gated_activation(hidden, parts.activation, own)
        middle = take("gathered", count, sum(parts.inner))
        group.all_gather_columns(own, parts.inner, middle)
        made = parts.down(middle, starts, take("outputs", count, parts.outputs[group.rank]))
        change_down(middle, made, places)
        whole = group.all_gather_columns(made, parts.outputs, given)
        return backend.combine_experts(whole, places, weights, out)


def _keep(x: Array, y: Array, places: npt.NDArray[np.int32]) -> None:
    """Change nothing."""
