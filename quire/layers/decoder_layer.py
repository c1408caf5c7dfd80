"""One decoder layer: attention and a feed-forward part, added to the residual.

The norm that follows a part is fused with the addition, so a layer ends with the norm of the next
one (or the final norm) already applied:

    residual ──────────────┬──────── + ─┬─────────────────── + ─┬──────▶ residual
    normed ─▶ qkv ─▶ attend ─▶ out end ─┘ norm ─▶ feed ─▶ end ──┘ norm ─▶ normed

An end is a norm, a factor, both, or nothing. In a parallel layer both parts are given the same
residual:

    residual ─┬────────────────────────────────── + ─┬──────▶ residual
    normed ───│─▶ qkv ─▶ attend ─▶ out ───────────┤  norm ─▶ normed
              └ norm ─▶ feed ─────────────────────┘

T tokens, D model dim, N query heads, H head dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from quire.kernels.backend import Array, Backend, Linear
from quire.kernels.batch.forward_batch import BatchRows
from quire.layers.attention import Mixing
from quire.layers.mlp import FeedForward
from quire.layers.norm import Norm
from quire.layers.workspace import Activations


class Layer(Protocol):
    """One layer of a decoder."""

    @property
    def mixing(self) -> Mixing:
        """The part that projects and attends."""
        ...

    def attend(self, step: Activations) -> None:
        """Mix each row with the cached positions before it: ``normed`` to ``attended``."""
        ...

    def feed(self, step: Activations) -> None:
        """Add attention and feed-forward part to ``residual``; its norm goes to ``normed``."""
        ...


@dataclass(frozen=True, slots=True)
class End:
    """The changes of a part's output before it is added.

    Attributes:
        backend: The backend that computes.
        norm: The norm of the output, or None.
        scale: Factor on the output.
    """

    backend: Backend
    norm: Norm | None = None
    scale: float = 1.0

    def __call__(self, x: Array, rows: BatchRows) -> Array:
        """Change ``x`` (T, D), these rows of a step, in place."""
        if self.norm is not None:
            self.norm(x, x, None, rows)
        if self.scale != 1:
            self.backend.scale(x, self.scale, x)
        return x


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Attention first, then the feed-forward part.

    Attributes:
        mixing: The part that projects and attends.
        output: The output projection: attention's outputs, N H as a rule, to D.
        attention_end, mlp_end: Changes of each part's output before it is added.
        mlp_norm: The norm before the feed-forward part.
        feed_forward: Dense or mixture of experts.
        next_norm: The next layer's first norm, or the model's last.
    """

    mixing: Mixing
    output: Linear
    attention_end: End
    mlp_norm: Norm
    feed_forward: FeedForward
    mlp_end: End
    next_norm: Norm

    def attend(self, step: Activations) -> None:
        """Mix each row with the cached positions before it: ``normed`` to ``attended``."""
        _attend(self, step)

    def feed(self, step: Activations) -> None:
        """Add attention and feed-forward part to ``residual``; its norm goes to ``normed``."""
        normed, residual, rows = step.normed, step.residual, step.rows
        self.attention_end(self.output(step.attended, normed, rows), rows)
        self.mlp_norm(normed, normed, residual, rows)
        self.next_norm(self.mlp_end(self.feed_forward(step), rows), normed, residual, rows)


@dataclass(frozen=True, slots=True)
class ParallelLayer:
    """Attention and feed-forward part of the same residual; attributes as :class:`DecoderLayer`."""

    backend: Backend
    mixing: Mixing
    output: Linear
    mlp_norm: Norm
    feed_forward: FeedForward
    next_norm: Norm

    def attend(self, step: Activations) -> None:
        """Mix each row with the cached positions before it: ``normed`` to ``attended``."""
        _attend(self, step)

    def feed(self, step: Activations) -> None:
        """Add attention and feed-forward part to ``residual``; its norm goes to ``normed``."""
        residual = step.residual
        # Attention's norm may be another one, or of rows that are not wanted any more.
        self.mlp_norm(residual, step.normed, None, step.rows)
        mixed = self.output(step.attended, step.apart, step.rows)
        fed = self.feed_forward(step)
        self.backend.add_residual(mixed, residual)
        self.next_norm(fed, step.normed, residual, step.rows)


def _attend(layer: DecoderLayer | ParallelLayer, step: Activations) -> None:
    layer.mixing.project(step.normed, step)
    layer.mixing.attend(step)
