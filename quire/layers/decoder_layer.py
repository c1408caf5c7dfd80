"""One decoder layer: attention, then a feed-forward part, each added to the residual.

The norm that follows a part is fused with the addition, so a layer ends with the norm of the next
one (or the final norm) already applied:

    residual ──────────────┬───── + ─┬──────────────── + ─┬──────▶ residual
    normed ─▶ qkv ─▶ attend ─▶ out ──┘ norm ─▶ feed ──────┘ norm ─▶ normed

T tokens, D model dim, N query heads, H head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.kernels.backend import Array, Attention, KVCache, Linear
from quire.kernels.forward_batch import ForwardBatch
from quire.layers.mlp import FeedForward
from quire.layers.norm import Norm
from quire.layers.workspace import Rows


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
    """

    qkv: Linear
    attention: Attention
    output: Linear
    mlp_norm: Norm
    feed_forward: FeedForward
    next_norm: Norm

    def attend(self, rows: Rows, batch: ForwardBatch, kv_cache: KVCache) -> Array:
        """Mix each row with the cached positions before it: ``rows.normed`` to (T, N H)."""
        self.qkv(rows.normed, rows.qkv)
        return self.attention(rows.qkv, batch, kv_cache, rows.attended)

    def feed(self, attended: Array, residual: Array, rows: Rows) -> Array:
        """Add attention and feed-forward part to ``residual``; return its norm, ``rows.normed``."""
        normed = rows.normed
        self.output(attended, normed)
        self.mlp_norm.add(normed, residual, normed)
        change = self.feed_forward(normed, rows)
        return self.next_norm.add(change, residual, normed)
