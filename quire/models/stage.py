"""A stage of a pipeline: consecutive layers of a model, and the transfer of rows between stages.

The first stage begins with the embedding. All but the last end with the next layer's first norm, as
every layer does: what goes on is (residual, normed) of all rows, and no bit depends on where layers
are divided.

T tokens of the step, D model dim.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.distributed.group import Group
from quire.kernels.backend import Array, Backend
from quire.layers.workspace import Activations


class StageLink(Protocol):
    """The link between a stage and its neighbour."""

    def send(self, step: Activations) -> None:
        """Hand ``residual`` and ``normed`` (T, D) of a step on; both may change on return."""
        ...

    def recv(self, step: Activations) -> None:
        """Write the rows that arrive to ``residual`` and ``normed`` of a step."""
        ...


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a model.

    Attributes:
        layers: The stage's layers, by their numbers in the model.
        before, after: Links that rows arrive and leave by; None at the ends of the model.
    """

    layers: range
    before: StageLink | None = None
    after: StageLink | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the model."""
        return self.before is None and self.after is None

    def __str__(self) -> str:
        return f"layers {self.layers[0]} to {self.layers[-1]}"

    def kv_cache_spec(self, spec: KVCacheSpec) -> KVCacheSpec:
        """Return the KV cache of these layers, of that of the model."""
        return replace(spec, num_layers=min(spec.num_layers, len(self.layers)))


class GroupLink:
    """A neighbour that is another rank.

    Args:
        backend: Backend of this stage; the neighbour's may be another one.
        group: Group that both ranks belong to.
        rank: Rank of the neighbour.
    """

    def __init__(self, backend: Backend, group: Group, rank: int) -> None:
        self._backend, self._group, self._rank = backend, group, rank

    def send(self, step: Activations) -> None:
        """Hand rows on as float32."""
        for rows in (step.residual, step.normed):
            self._group.send(self._backend.to_numpy(rows), self._rank)

    def recv(self, step: Activations) -> None:
        """Take rows."""
        for rows in (step.residual, step.normed):
            receive(self._backend, self._group, self._rank, rows)


class SentCapture:
    """Sends what enters chosen layers to the rank that reads it, which calls :func:`receive`.

    Args:
        backend: Backend of the stage.
        group: Group of all ranks.
        layers: Numbers of the layers in the model; those of other stages are left alone.
        rank: Rank that reads the residual stream.
    """

    def __init__(self, backend: Backend, group: Group, layers: frozenset[int], rank: int) -> None:
        self._backend, self._group, self._layers, self._rank = backend, group, layers, rank

    def keep(self, layer: int, residual: Array) -> None:
        """Send (T, D) ``residual``, which enters ``layer``, if that is one of the layers."""
        if layer in self._layers:
            self._group.send(self._backend.to_numpy(residual), self._rank)


def receive(backend: Backend, group: Group, rank: int, out: Array) -> Array:
    """Write to ``out``, of any float type, what another rank has sent as float32."""
    host = np.empty(tuple(out.shape), np.float32)
    out[...] = backend.from_numpy(group.recv(host, rank))
    return out
