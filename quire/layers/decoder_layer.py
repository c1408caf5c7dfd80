"""One decoder layer: attention, then a feed-forward part, each added to the residual.

The norm that follows a part is fused with the addition, so a layer ends with the norm of the next
one (or the final norm) already applied:

    residual ──────────────┬───── + ─┬──────────────── + ─┬──────▶ residual
    normed ─▶ qkv ─▶ attend ─▶ out ──┘ norm ─▶ feed ──────┘ norm ─▶ normed

T tokens, D model dim, N query heads, H head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.kernels.backend import Attention, Linear
from quire.layers.mlp import FeedForward
from quire.layers.norm import Norm
from quire.layers.workspace import Activations


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """The parts of a layer.

    Attributes:
        qkv: D to queries, keys and values.
        attention: Rotates, stores and attends.
        output: N H to D.
        mlp_norm: Before the feed-forward part.
        feed_forward: Dense or mixture of experts.
        next_norm: The next layer's first norm, or the model's last.
        plan: Index into ``Activations.plans``; layers whose attention differs in nothing but
            the layer share a plan.
    """

    qkv: Linear
    attention: Attention
    output: Linear
    mlp_norm: Norm
    feed_forward: FeedForward
    next_norm: Norm
    plan: int

    def attend(self, step: Activations) -> None:
        """Mix each row with the cached positions before it: ``normed`` to ``attended``."""
        self.qkv(step.normed, step.qkv, step.rows)
        self.attention.run(step.qkv, step.plans[self.plan], step.attended)

    def feed(self, step: Activations) -> None:
        """Add attention and feed-forward part to ``residual``; its norm goes to ``normed``."""
        normed, residual = step.normed, step.residual
        self.output(step.attended, normed, step.rows)
        self.mlp_norm(normed, normed, residual)
        self.next_norm(self.feed_forward(step), normed, residual)
