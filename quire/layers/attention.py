"""The mixing of a layer's rows: projections of its inputs, then the attention of a backend.

T tokens, D model dim, N query heads, K KV heads, H head dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from quire.kernels.attention_protocol import Attention, LatentAttention, PlannedAttention
from quire.kernels.backend import Array, Linear
from quire.layers.norm import Norm
from quire.layers.workspace import Activations


class Mixing(Protocol):
    """The part of a layer before its output projection."""

    @property
    def attention(self) -> PlannedAttention:
        """The backend's attention, which rotates, stores and attends."""
        ...

    @property
    def plan(self) -> int:
        """Index into ``Activations.plans``; layers whose attention differs in nothing else but
        the layer share a plan."""
        ...

    @property
    def inputs(self) -> Linear:
        """The linear that the layer's inputs are multiplied with first."""
        ...

    def project(self, x: Array, step: Activations) -> None:
        """Multiply the layer's inputs (T, D) to the inputs of :meth:`attend`."""
        ...

    def attend(self, step: Activations) -> None:
        """Store the rows' K and V and mix each with the positions before it: to ``attended``."""
        ...


@dataclass(frozen=True, slots=True)
class HeadsMixing:
    """Queries, keys and values of one product.

    Attributes:
        inputs: D to (N + 2 K) H.
        attention, plan: See :class:`Mixing`.
    """

    inputs: Linear
    attention: Attention
    plan: int

    def project(self, x: Array, step: Activations) -> None:
        """Multiply (T, D) to ``qkv``."""
        self.inputs(x, step.qkv, step.rows)

    def attend(self, step: Activations) -> None:
        """Attend: ``qkv`` to ``attended``."""
        self.attention.run(step.qkv, step.plans[self.plan], step.attended)


@dataclass(frozen=True, slots=True)
class QueryRank:
    """Queries that are projected down to fewer elements, then up.

    Attributes:
        norm: The norm of the fewer elements.
        up: The fewer elements to N H.
    """

    norm: Norm
    up: Linear


@dataclass(frozen=True, slots=True)
class LatentMixing:
    """Queries, and latents that keys and values are made of.

    Attributes:
        inputs: D to queries (N H), or to the inputs of ``rank``.
        rank: The second half of a query projection in two steps; None for one step.
        latents: D to latent and rotated part of the keys.
        attention, plan: See :class:`Mixing`.
    """

    inputs: Linear
    rank: QueryRank | None
    latents: Linear
    attention: LatentAttention
    plan: int

    def project(self, x: Array, step: Activations) -> None:
        """Multiply (T, D) to queries in ``qkv`` and to ``latents``."""
        self.latents(x, step.latents, step.rows)
        if self.rank is None:
            self.inputs(x, step.qkv, step.rows)
            return
        queries = self.inputs(x, step.query_latents, step.rows)
        self.rank.norm(queries, queries)
        self.rank.up(queries, step.qkv, step.rows)

    def attend(self, step: Activations) -> None:
        """Attend: ``qkv`` and ``latents`` to ``attended``."""
        self.attention.run(step.qkv, step.latents, step.plans[self.plan], step.attended)
