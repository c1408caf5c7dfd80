"""The meaning of ``kernels/attention.py`` in plain torch: gather, then dense attention.

T tokens, B requests, N query heads, K KV heads, H head dim, S context.
"""

from __future__ import annotations

import torch

from quire.kernels import attention
from quire.kernels.backend import AttentionSpec, KVCache, QKNorm
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.reference.kv_cache import ReferenceKVCache
from quire.kernels.reference.norm import layer_norm, rms_norm


class ReferenceAttention:
    """One layer's attention."""

    def __init__(
        self,
        spec: AttentionSpec,
        rope: tuple[torch.Tensor, torch.Tensor] | None = None,
        qk_norm: QKNorm | None = None,
        sinks: torch.Tensor | None = None,
        query_scales: torch.Tensor | None = None,
    ) -> None:
        attention.check_spec(spec, rope, qk_norm, sinks, query_scales)
        self.spec = spec
        self.rope = rope
        self.qk_norm = qk_norm
        self.sinks = sinks
        self.query_scales = query_scales

    def plan(self, batch: ForwardBatch, kv_cache: KVCache) -> tuple[ForwardBatch, ReferenceKVCache]:
        """Check a step."""
        assert isinstance(kv_cache, ReferenceKVCache)
        attention.check_batch(self.spec, batch)
        attention.check_cache(self.spec, kv_cache.spec)
        return batch, kv_cache

    def run(
        self, qkv: torch.Tensor, plan: tuple[ForwardBatch, ReferenceKVCache], out: torch.Tensor
    ) -> torch.Tensor:
        """Write this step's K and V to the cache, then attend."""
        batch, kv_cache = plan
        spec = self.spec
        attention.check(spec, qkv, len(batch.slot_mapping), out)
        heads = qkv.view(qkv.shape[0], -1, spec.head_dim)
        q, k, v = heads.tensor_split([spec.num_heads, spec.num_heads + spec.num_kv_heads], dim=1)
        if self.qk_norm is not None:
            q.copy_(normalize(q, self.qk_norm, self.qk_norm.queries))
            k.copy_(normalize(k, self.qk_norm, self.qk_norm.keys))
        for x in (q, k):
            if self.rope is not None:
                rotate(x, batch.positions.long(), *self.rope, spec.rope_sections)
        if self.query_scales is not None:
            first = batch.positions.view(-1, len(q))[0].long()
            q.mul_(self.query_scales[first][:, None, None])
        written = batch.slot_mapping >= 0
        kv_cache.write(spec.layer, batch.slot_mapping[written], k[written], v[written])
        starts = batch.query_start_loc.tolist()
        block_size = kv_cache.spec.block_size
        for i, seq_len in enumerate(batch.seq_lens.tolist()):
            rows = slice(starts[i], starts[i + 1])
            positions = torch.arange(seq_len - (starts[i + 1] - starts[i]), seq_len)
            first_seen = _first_visible(int(positions[0]), spec) if len(positions) else 0
            context = torch.arange(first_seen, seq_len)
            blocks = batch.block_tables[i].long()[context // block_size]
            slots = blocks * block_size + context % block_size
            mask = visible(positions, context, spec)
            if batch.last_seen is not None:
                later = context[None, :] > positions[:, None]
                mask |= later & (context[None, :] <= batch.last_seen[rows, None])
            k, v = kv_cache.read(spec.layer, slots)
            out[rows] = attend(q[rows], k, v, mask, spec, self.sinks).flatten(1)
            if batch.tree_starts is not None and batch.tree_starts[i] < seq_len:
                self._attend_paths(q, batch, i, kv_cache, out)
        return out

    def _attend_paths(
        self,
        q: torch.Tensor,
        batch: ForwardBatch,
        request: int,
        kv_cache: ReferenceKVCache,
        out: torch.Tensor,
    ) -> None:
        """Attend for each row of a request's tree, along its own path."""
        assert batch.tree_starts is not None and batch.tree_slots is not None
        size = kv_cache.spec.block_size
        start, table = int(batch.tree_starts[request]), batch.block_tables[request].long()
        for row in range(*batch.query_start_loc[request : request + 2].tolist()):
            path = batch.tree_slots[row][batch.tree_slots[row] >= 0]
            if len(path):
                context = torch.arange(start)
                slots = torch.cat([table[context // size] * size + context % size, path])
                first = _first_visible(len(slots) - 1, self.spec)
                k, v = kv_cache.read(self.spec.layer, slots[first:])
                seen = torch.ones(1, len(slots) - first, dtype=torch.bool)
                result = attend(q[row : row + 1], k, v, seen, self.spec, self.sinks)
                out[row] = result.flatten()


def rotate(
    x: torch.Tensor,
    positions: torch.Tensor,
    cosines: torch.Tensor,
    sines: torch.Tensor,
    sections: tuple[int, ...] = (),
) -> None:
    """Turn the pairs ``(x[i], x[i + R/2])`` of each head of (T, heads, H) in place."""
    half = cosines.shape[1]
    # The position of each token and pair, (T, R/2).
    counts = torch.tensor(sections or (half,))
    at = positions.view(-1, x.shape[0]).expand(len(counts), -1).repeat_interleave(counts, dim=0).T
    cos, sin = (table[at, torch.arange(half)][:, None] for table in (cosines, sines))
    first, second = x[..., :half].clone(), x[..., half : 2 * half].clone()
    x[..., :half] = first * cos - second * sin
    x[..., half : 2 * half] = second * cos + first * sin


def normalize(x: torch.Tensor, norm: QKNorm, weight: torch.Tensor) -> torch.Tensor:
    """Return the norm of queries or keys (T, heads, H)."""
    if norm.kind == "rms_of_rows":
        return rms_norm(x.flatten(1), weight, norm.eps).view(x.shape)
    if norm.kind == "layer_of_heads":
        return layer_norm(x, weight, torch.zeros_like(weight), norm.eps)
    return rms_norm(x, weight, norm.eps)


def visible(positions: torch.Tensor, context: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
    """Return (queries, context) booleans: which cached position each query sees."""
    distance = positions[:, None] - context[None, :]
    seen = torch.ones_like(distance, dtype=torch.bool)
    if spec.ahead is not None:
        seen &= distance >= -spec.ahead
    if spec.sliding_window is not None:
        seen &= distance < spec.sliding_window
    if spec.chunk is not None:
        seen &= positions[:, None] // spec.chunk <= context[None, :] // spec.chunk
    return seen


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    spec: AttentionSpec,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Return dense attention of q (T, N, H) over k, v (S, K, H) under mask (T, S)."""
    group = q.shape[1] // k.shape[1]
    k = k.to(q.dtype).repeat_interleave(group, dim=1)
    v = v.to(q.dtype).repeat_interleave(group, dim=1)
    scores = torch.einsum("tnh,snh->nts", q, k) * spec.scale
    if spec.score_cap is not None:
        scores = spec.score_cap * torch.tanh(scores / spec.score_cap)
    scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        of_each_row = sinks[:, None, None].expand(-1, len(q), 1)
        scores = torch.cat([scores, of_each_row], dim=-1)
    weights = scores.softmax(-1)[..., : len(k)]
    return torch.einsum("nts,snh->tnh", weights, v)


def _first_visible(position: int, spec: AttentionSpec) -> int:
    window = 0 if spec.sliding_window is None else position - spec.sliding_window + 1
    chunk = 0 if spec.chunk is None else position // spec.chunk * spec.chunk
    return max(0, window, chunk)
