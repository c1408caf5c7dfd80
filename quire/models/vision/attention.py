"""Attention of picture encoders: every row of a span sees every row of its span and no other.

A span is a picture, or a window of one. T rows, N heads, H head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.core.kv_cache_spec import KVCacheSpec
from quire.kernels.backend import Array, Attention, AttentionPlan, AttentionSpec, Backend, KVCache
from quire.kernels.forward_batch import ForwardBatch
from quire.models.vision.slices import SLICE_WORK, Slices

#: Rows of the spans that are attended to in one call, but for one that has more.
PART_ROWS = 4096
#: Rows of a block; spans begin with a block each.
_BLOCK_SIZE = 64

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SpanPart:
    """Spans that are attended to in one call.

    Attributes:
        rows: Theirs.
        num_heads: Of a call: all, or as many of one long span as are a slice.
        plan: Of each call.
    """

    rows: slice
    num_heads: int
    plan: AttentionPlan


class SpanAttention:
    """Attention of all of an encoder's layers, by the backend's kernels.

    Keys and values are kept in float32 for the length of a call.

    Args:
        backend: Computes.
        num_heads: N, of queries, keys and values.
        head_dim: H.
        rope: Cosines and sines, each (positions, H / 2), as of
            :meth:`~quire.kernels.backend.Backend.attention`; None for no rotation.
        rope_sections: As of :class:`~quire.kernels.backend.AttentionSpec`: with (n, n) the first n
            pairs turn by a row's first position and the others by its second.
    """

    def __init__(
        self,
        backend: Backend,
        num_heads: int,
        head_dim: int,
        rope: tuple[Array, Array] | None = None,
        rope_sections: tuple[int, ...] = (),
    ) -> None:
        self._backend = backend
        self._num_heads, self._head_dim = num_heads, head_dim
        self._rope, self._rope_sections = rope, rope_sections
        self._attentions: dict[int, Attention] = {}
        self._caches: dict[int, KVCache] = {}

    def plan(
        self, lengths: Sequence[int], positions: IntArray | None = None
    ) -> tuple[SpanPart, ...]:
        """Prepare calls with the same spans.

        Args:
            lengths: Rows of each span in order, at least 1; they sum to T.
            positions: (T,), or (S, T) with S sections: what the rotation turns by; None: by a row's
                place in its span.
        """
        parts: list[SpanPart] = []
        first = start = 0
        while first < len(lengths):
            end, work = first + 1, self._work(lengths[first])
            stop = start + lengths[first]
            while (
                end < len(lengths)
                and work + self._work(lengths[end]) <= SLICE_WORK
                and stop - start + lengths[end] <= PART_ROWS
            ):
                work += self._work(lengths[end])
                stop += lengths[end]
                end += 1
            own = None if positions is None else positions[..., start:stop]
            num_heads = max(1, min(self._num_heads, self._num_heads * SLICE_WORK // work))
            while self._num_heads % num_heads:
                num_heads -= 1
            plan = self._plan(np.array(lengths[first:end], np.int32), own, num_heads)
            parts.append(SpanPart(slice(start, stop), num_heads, plan))
            first, start = end, stop
        return tuple(parts)

    def run(self, qkv: Array, plan: Sequence[SpanPart], out: Array) -> Slices[None]:
        """Write to ``out`` (T, N H) what rows see by ``qkv`` (T, 3 N H), which is overwritten."""
        for part in plan:
            for head in range(0, self._num_heads, part.num_heads):
                self._run(qkv[part.rows], part, head, out[part.rows])
                yield

    def _work(self, length: int) -> int:
        return 2 * length * length * self._num_heads * self._head_dim

    def _run(self, qkv: Array, part: SpanPart, head: int, out: Array) -> None:
        attention = self._attention(part.num_heads)
        if part.num_heads == self._num_heads:
            attention.run(qkv, part.plan, out)
            return
        size, end = self._head_dim, head + part.num_heads
        heads = qkv.reshape(qkv.shape[0], 3, self._num_heads, size)[:, :, head:end]
        own = heads.reshape(qkv.shape[0], 3 * part.num_heads * size)
        shape = qkv.shape[0], part.num_heads * size
        found = self._backend.empty(shape, self._backend.activation_dtype)
        out[:, head * size : end * size] = attention.run(own, part.plan, found)

    def _attention(self, num_heads: int) -> Attention:
        found = self._attentions.get(num_heads)
        if found is None:
            spec = AttentionSpec(
                layer=0,
                num_heads=num_heads,
                num_kv_heads=num_heads,
                head_dim=self._head_dim,
                scale=self._head_dim**-0.5,
                ahead=None,
                rope_sections=self._rope_sections,
            )
            found = self._backend.attention(spec, rope=self._rope)
            self._attentions[num_heads] = found
        return found

    def _plan(self, lengths: IntArray, positions: IntArray | None, num_heads: int) -> AttentionPlan:
        blocks = -(-lengths // _BLOCK_SIZE)
        first_blocks = (blocks.cumsum() - blocks).astype(np.int32)
        num_blocks = int(blocks.sum())
        starts = np.zeros(len(lengths) + 1, np.int32)
        lengths.cumsum(out=starts[1:])
        places = np.arange(starts[-1], dtype=np.int32) - starts[:-1].repeat(lengths)
        tables = first_blocks[:, None] + np.arange(blocks.max(), dtype=np.int32)
        batch = ForwardBatch(
            input_ids=np.zeros_like(places),
            positions=places if positions is None else np.ascontiguousarray(positions, np.int32),
            slot_mapping=first_blocks.repeat(lengths).astype(np.int64) * _BLOCK_SIZE + places,
            block_tables=np.minimum(tables, num_blocks - 1),
            query_start_loc=starts,
            seq_lens=lengths,
            logits_indices=np.zeros(0, np.int32),
        )
        cache = self._cache(num_heads, num_blocks)
        return self._attention(num_heads).plan(self._backend.upload(batch), cache)

    def _cache(self, num_heads: int, num_blocks: int) -> KVCache:
        """Return a cache of at least that many blocks; plans with smaller ones keep theirs."""
        found = self._caches.get(num_heads)
        if found is None or found.num_blocks < num_blocks:
            spec = KVCacheSpec(1, num_heads, self._head_dim, _BLOCK_SIZE, "float32")
            found = self._caches[num_heads] = self._backend.kv_cache(spec, num_blocks)
        return found
