"""Experts of a layer that several engines have some of each, for requests of their own; same bits.

An engine sends the rows that the router gives to experts of others, multiplies its own meanwhile,
and sums up what a row's experts gave in the order of the router. No engine waits for another one's
step: each multiplies rows for the others whenever they come.

T rows, k experts of each, R = T k routed rows, D model dim.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from quire.kernels.backend import Array, Backend
from quire.kernels.forward_batch import BatchRows
from quire.layers.expert_placement import ExpertPlacement
from quire.layers.own_experts import OwnExperts, combine_in_order
from quire.layers.parallel_linear import Scratch

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
#: Multiplies each row of x (R, D) with the expert of a number (R,); from any thread.
Multiply = Callable[[Floats, Ints], Floats]


class Siblings(Protocol):
    """The engines that share a model's experts, as one of them reaches the others.

    Attributes:
        number: Of this engine.
        size: Engines.
    """

    number: int
    size: int

    def serve(self, multiply: Multiply) -> int:
        """Multiply rows for the others by a layer's experts; return the layer's number."""
        ...

    def ask(self, engine: int, layer: int, experts: Ints, x: Floats) -> None:
        """Send rows x (R, D) to an engine; they must stay as they are until the answer is there.

        Raises:
            RankDeadError: It is gone.
        """
        ...

    def answer(self, engine: int, out: Floats) -> None:
        """Wait for what experts made of the rows that an engine was asked for, (R, D).

        Raises:
            RankDeadError: It is gone.
        """
        ...


class EngineExperts:
    """See :class:`quire.kernels.backend.MixedExperts`.

    Args:
        backend: Computes.
        siblings: The engines.
        scratch: Memory of this engine's steps.
        placement: Which engine has which.
        own: This engine's.

    Attributes:
        nbytes, packed: Of this engine's.
    """

    def __init__(
        self,
        backend: Backend,
        siblings: Siblings,
        scratch: Scratch,
        placement: ExpertPlacement,
        own: OwnExperts,
    ) -> None:
        self._backend, self._siblings, self._scratch = backend, siblings, scratch
        self._placement, self._own = placement, own
        self.nbytes, self.packed = own.nbytes, own.packed
        self._layer = siblings.serve(self._multiply)

    def __call__(
        self, x: Array, ids: Array, weights: Array, out: Array, rows: BatchRows | None = None
    ) -> Array:
        """Mix the experts of each row."""
        backend, siblings = self._backend, self._siblings
        routed = backend.to_numpy(ids)
        flat, width = routed.reshape(-1), x.shape[1]
        owners = self._placement.owners(flat)
        order = np.argsort(owners, kind="stable")
        tokens = (order // routed.shape[1]).astype(np.int32)
        given = self._scratch.take("inputs", len(flat), width)
        backend.gather_rows(x, backend.from_numpy(tokens), given)
        made, experts = self._scratch.take("gathered", len(flat), width), flat[order]
        ends = [0, *accumulate(np.bincount(owners, minlength=siblings.size).tolist())]
        parts = [slice(*pair) for pair in pairwise(ends)]
        own = parts[siblings.number]
        others = [e for e, p in enumerate(parts) if p.start < p.stop and e != siblings.number]
        host, answers = backend.to_numpy(given), backend.to_numpy(made)
        for engine in others:
            siblings.ask(engine, self._layer, experts[parts[engine]], host[parts[engine]])
        self._own.multiply(given[own], experts[own], made[own])
        for engine in others:
            siblings.answer(engine, answers[parts[engine]])
        return combine_in_order(backend, made, order, weights, out)

    def _multiply(self, x: Floats, experts: Ints) -> Floats:
        """Multiply rows of another engine."""
        backend = self._backend
        made = backend.empty(x.shape)
        found: Floats = backend.to_numpy(self._own.multiply(backend.from_numpy(x), experts, made))
        return found
