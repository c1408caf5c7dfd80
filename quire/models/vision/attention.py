"""Attention of picture encoders: every row of a span sees every row of its span and no other.

A span is a picture, or a window of one. T rows, N heads, H head dim.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.kernels.backend import Array, Attention, AttentionPlan, AttentionSpec, Backend, KVCache
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.models.vision.slices import SLICE_WORK, Slices

#: Rows of the spans that are attended to in one call, but for one that has more.
PART_ROWS = 4096
#: Rows of a block; spans begin with a block each.
_BLOCK_SIZE = 64
#: Rotating and storing a row takes as long as seeing that many.
_STORED_ROWS = 256
#: Rows that kernels attend to together: parts of a span have multiples of it.
_QUERY_ROWS = 128

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SpanPart:
    """Spans that are attended to in one call, or a part of a span's heads in one or several.

    Attributes:
        rows: Rows of the spans.
        num_heads: Heads of a call: all, or as many of one long span as are a slice.
        plan: Plan of the call; it rotates and stores a span's rows where ``queries`` attend.
        queries: Rows of the span, and the plan of the call in which they see all of it; none where
            a call for all of them is no more than a slice.
    """

    rows: slice
    num_heads: int
    plan: AttentionPlan
    queries: Sequence[tuple[slice, AttentionPlan]] = ()


class SpanAttention:
    """Attention of all of an encoder's layers, by the backend's kernels.

    Keys and values are kept in float32 for the length of a call.

    Args:
        backend: The backend that computes.
        num_heads: N, of queries, keys and values.
        head_dim: H.
        rope: Cosines and sines, each (positions, H / 2), as for
            :meth:`~quire.kernels.backend.Backend.attention`; None for no rotation.
        rope_sections: Pairs that turn by each position, as in
            :class:`~quire.kernels.backend.AttentionSpec`: with (n, n) the first n pairs turn by a
            row's first position and the others by its second.
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
        self._attentions: dict[tuple[int, bool], Attention] = {}
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
            rows, part = slice(start, stop), np.array(lengths[first:end], np.int32)
            num_heads = min(self._num_heads, self._num_heads * SLICE_WORK // work)
            if num_heads:
                while self._num_heads % num_heads:
                    num_heads -= 1
                plan = self._plan(part, own, num_heads, self._cache(num_heads, _num_blocks(part)))
                parts.append(SpanPart(rows, num_heads, plan))
            else:
                parts.append(self._in_queries(rows, own))
            first, start = end, stop
        return tuple(parts)

    def run(self, qkv: Array, plan: Sequence[SpanPart], out: Array) -> Slices[None]:
        """Write to ``out`` (T, N H) what rows see by ``qkv`` (T, 3 N H), which is overwritten."""
        for part in plan:
            if part.num_heads == self._num_heads and not part.queries:
                self._attention(part.num_heads).run(qkv[part.rows], part.plan, out[part.rows])
                yield
                continue
            for head in range(0, self._num_heads, part.num_heads):
                yield from self._run_heads(qkv[part.rows], part, head, out[part.rows])

    def _work(self, length: int) -> int:
        return 2 * length * (length + _STORED_ROWS) * self._num_heads * self._head_dim

    def _run_heads(self, qkv: Array, part: SpanPart, head: int, out: Array) -> Slices[None]:
        size, end = self._head_dim, head + part.num_heads
        heads = qkv.reshape(qkv.shape[0], 3, self._num_heads, size)[:, :, head:end]
        own = heads.reshape(qkv.shape[0], 3 * part.num_heads * size)
        columns = slice(head * size, end * size)
        shape = qkv.shape[0], part.num_heads * size
        found = self._backend.empty(shape, self._backend.activation_dtype)
        self._attention(part.num_heads).run(own, part.plan, found)
        if not part.queries:
            out[:, columns] = found
        yield
        for rows, plan in part.queries:
            attention = self._attention(part.num_heads, stored=True)
            out[rows, columns] = attention.run(own[rows], plan, found[rows])
            yield

    def _attention(self, num_heads: int, *, stored: bool = False) -> Attention:
        """Return attention of that many heads; of rows that are rotated and stored, or are not."""
        found = self._attentions.get((num_heads, stored))
        if found is None:
            spec = AttentionSpec(
                layer=0,
                num_heads=num_heads,
                num_kv_heads=num_heads,
                head_dim=self._head_dim,
                scale=self._head_dim**-0.5,
                ahead=0 if stored else None,
                rope_sections=() if stored else self._rope_sections,
            )
            found = self._backend.attention(spec, rope=None if stored else self._rope)
            self._attentions[num_heads, stored] = found
        return found

    def _in_queries(self, rows: slice, positions: IntArray | None) -> SpanPart:
        """Return a span of which not even one head is a slice: its rows are stored, then attend.

        They are stored a block at a time, each seeing its block alone, which costs little.
        """
        length: int = rows.stop - rows.start
        starts = np.arange(0, length, _BLOCK_SIZE, dtype=np.int32)
        blocks = np.diff(starts, append=np.int32(length))
        cache = self._new_cache(1, len(blocks))  # keeps what it holds from slice to slice
        if positions is None:
            positions = np.arange(length, dtype=np.int32)
        tables = np.arange(len(blocks), dtype=np.int32)[None]
        most = SLICE_WORK // (2 * length * self._head_dim) // _QUERY_ROWS * _QUERY_ROWS
        # No part of a single row: kernels compute one in another way, which differs in its bits.
        cuts = [*range(0, length - 1, max(most, _QUERY_ROWS)), length]
        attention, queries = self._attention(1, stored=True), []
        for start, stop in itertools.pairwise(cuts):
            count = stop - start
            batch = ForwardBatch(
                input_ids=np.zeros(count, np.int32),
                positions=np.arange(length - count, length, dtype=np.int32),
                slot_mapping=np.full(count, -1, np.int64),
                block_tables=tables,
                query_start_loc=np.array([0, count], np.int32),
                seq_lens=np.array([length], np.int32),
                logits_indices=np.zeros(0, np.int32),
                last_seen=np.full(count, length - 1, np.int32),
            )
            plan = attention.plan(self._backend.upload(batch), cache)
            queries.append((slice(start, stop), plan))
        return SpanPart(rows, 1, self._plan(blocks, positions, 1, cache), queries)

    def _plan(
        self, lengths: IntArray, positions: IntArray | None, num_heads: int, cache: KVCache
    ) -> AttentionPlan:
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
        return self._attention(num_heads).plan(self._backend.upload(batch), cache)

    def _cache(self, num_heads: int, num_blocks: int) -> KVCache:
        """Return a cache of at least that many blocks; plans with smaller ones keep theirs."""
        found = self._caches.get(num_heads)
        if found is None or found.num_blocks < num_blocks:
            found = self._caches[num_heads] = self._new_cache(num_heads, num_blocks)
        return found

    def _new_cache(self, num_heads: int, num_blocks: int) -> KVCache:
        spec = KVCacheSpec(1, num_heads, self._head_dim, _BLOCK_SIZE, "float32")
        return self._backend.kv_cache(spec, num_blocks)


def _num_blocks(lengths: IntArray) -> int:
    return int((-(-lengths // _BLOCK_SIZE)).sum())
