"""The KV cache and attention of a device: what layers build and call; no definition of an op.

T tokens, B requests, N query heads, K KV heads, H head dim; of latent attention r elements of a
latent and R elements of a key that turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.kernels.batch.forward_batch import Array, ForwardBatch
from quire.kernels.matrices.host_tensor import HostTensor

#: What an attention op prepared for a step; only the backend that made it looks inside.
AttentionPlan = Any


class KVCache(Protocol):
    """K and V of all layers, in blocks; block 0 is the null block."""

    spec: KVCacheSpec
    num_blocks: int

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, of all processes that have a part of it."""
        ...

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks ``(source, destination)`` in every layer, in order."""
        ...

    def copy_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy slots ``(source, destination)`` in every layer, in order."""
        ...

    def checksums(self, block_ids: Sequence[int]) -> list[int]:
        """Return a checksum of each block's bytes over all layers; equal bytes, equal checksum."""
        ...

    def read_blocks(self, block_ids: Sequence[int]) -> Array:
        """Return (B, block_bytes) uint8 on the host: all layers, scales included.

        The order of a block's bytes is the backend's own.
        """
        ...

    def write_blocks(self, block_ids: Sequence[int], data: Array) -> None:
        """Give blocks the content that :meth:`read_blocks` of an equal cache returned, in order."""
        ...


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """One layer's attention.

    Attributes:
        layer: Index into the KV cache.
        num_heads, num_kv_heads, head_dim: N, K, H.
        scale: Factor of the scores.
        sliding_window: Number of latest positions that a query sees, itself included; None for all.
        chunk: Length of the stretches of positions of which a query sees its own alone; None for
            all.
        ahead: Number of later positions of its request that a query sees; None for all, as encoders
            do. A step with any must have its requests whole.
        score_cap: Bound that scores are bent towards, ``cap * tanh(score / cap)``; None without.
        rope_sections: Number of rotary pairs that turn by each row of the step's positions (S, T),
            in order; empty where positions are (T,).
    """

    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    sliding_window: int | None = None
    chunk: int | None = None
    ahead: int | None = 0
    score_cap: float | None = None
    rope_sections: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class QKNorm:
    """The norm of queries and keys before RoPE.

    Attributes:
        kind: Kind of the norm. ``rms_of_heads``: RMSNorm of each head, weights (H,) for all of
            them; ``rms_of_rows``: RMSNorm of a token's heads together, weights (N H,) and (K H,);
            ``layer_of_heads``: LayerNorm of each head without a bias, weights (N, H) and (K, H).
        queries, keys: Weights of the norm, float32.
        eps: Term added to the mean square, or to the variance.
    """

    kind: str
    queries: Array
    keys: Array
    eps: float


class PlannedAttention(Protocol):
    """One layer's attention, of any kind."""

    def plan(self, batch: ForwardBatch, kv_cache: KVCache) -> AttentionPlan:
        """Check a step and prepare it, once for all layers whose specs differ in ``layer`` alone.

        The arrays of ``batch`` must not change as long as the plan is used.

        Raises:
            UnsupportedInputError: The batch does not fit together, or points outside the cache.
        """
        ...


class Attention(PlannedAttention, Protocol):
    """Rotate, store and attend for one layer, through block tables."""

    def run(self, qkv: Array, plan: AttentionPlan, out: Array) -> Array:
        """Write this step's K and V to the cache, then attend.

        Query ``t`` at position ``p`` sees positions ``max(0, p - window + 1) .. p + ahead``. Each
        (row, head) reduces over absolute positions in fixed pieces, so the result does not depend
        on the batch, on how the prompt was cut into steps, or on the number of threads.

        Args:
            qkv: (T, (N + 2 K) H): queries, keys, values; overwritten by the rotation.
            plan: The plan of the step.
            out: (T, N H), written.

        Returns:
            ``out``.
        """
        ...


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """One layer's latent attention.

    Attributes:
        layer: Index into the KV cache.
        num_heads: N.
        rank, rope_dim: r, R; a row of the cache has both.
        key_dim, value_dim: Elements of a head's key and value that are made of a latent.
        scale: Factor of the scores.
    """

    layer: int
    num_heads: int
    rank: int
    rope_dim: int
    key_dim: int
    value_dim: int
    scale: float

    @property
    def query_width(self) -> int:
        """Elements of a token's queries: N (key_dim + R)."""
        return self.num_heads * (self.key_dim + self.rope_dim)

    @property
    def row_dim(self) -> int:
        """Elements of a row of the cache: r + R."""
        return self.rank + self.rope_dim


@dataclass(frozen=True, slots=True, eq=False)
class LatentWeights:
    """The weights that latents are normalised by, and made into keys and values.

    Attributes:
        norm: (r,) float32, weights of the latents' RMSNorm.
        eps: Term added to its mean square.
        heads: (N (key_dim + value_dim), r): of each head what makes its key, then its value.
        dtype: Element type that ``heads`` are held in; None for the type they are stored in.
    """

    norm: Array
    eps: float
    heads: HostTensor
    dtype: str | None


class LatentAttention(PlannedAttention, Protocol):
    """Rotate, store latents and attend to them for one layer, through block tables."""

    nbytes: int

    def run(self, queries: Array, latents: Array, plan: AttentionPlan, out: Array) -> Array:
        """Write this step's latents to the cache, then attend.

        A row's result depends on what :meth:`Attention.run` says that it does.

        Args:
            queries: (T, N (key_dim + R)), each head's rotated part last; may be overwritten.
            latents: (T, r + R), the rotated part last; may be overwritten.
            plan: The plan of the step.
            out: (T, N value_dim), written.

        Returns:
            ``out``.
        """
        ...
