"""The meaning of ``kernels/latent_attention.py`` in plain torch: keys and values of each head.

T tokens, N query heads, S context, r elements of a latent, R elements of a key that turn.
"""

from __future__ import annotations

import torch

from quire.kernels import attention, latent_attention
from quire.kernels.attention_protocol import AttentionSpec, KVCache, LatentSpec, LatentWeights
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.linear import held_dtype
from quire.kernels.reference.attention import attend, rotate
from quire.kernels.reference.kv_cache import ReferenceKVCache
from quire.kernels.reference.linear import DTYPES
from quire.kernels.reference.norm import rms_norm


class ReferenceLatentAttention:
    """One layer's latent attention."""

    def __init__(
        self, spec: LatentSpec, weights: LatentWeights, rope: tuple[torch.Tensor, torch.Tensor]
    ) -> None:
        latent_attention.check_spec(spec, weights, rope)
        self.spec, self.weights, self.rope = spec, weights, rope
        dtype = DTYPES[held_dtype([weights.heads], weights.dtype)]
        heads = torch.from_numpy(weights.heads.float32().copy()).to(dtype)
        self.nbytes = heads.nbytes
        made = heads.view(spec.num_heads, spec.key_dim + spec.value_dim, spec.rank)
        self._keys, self._values = made.float().tensor_split([spec.key_dim], dim=1)
        size = spec.key_dim + spec.rope_dim
        # As attention of ordinary heads sees it.
        self._attended = AttentionSpec(spec.layer, spec.num_heads, spec.num_heads, size, spec.scale)

    def plan(self, batch: ForwardBatch, kv_cache: KVCache) -> tuple[ForwardBatch, ReferenceKVCache]:
        """Check a step."""
        assert isinstance(kv_cache, ReferenceKVCache)
        attention.check_batch(self._attended, batch)
        latent_attention.check_cache(self.spec, kv_cache.spec)
        return batch, kv_cache

    def run(
        self,
        queries: torch.Tensor,
        latents: torch.Tensor,
        plan: tuple[ForwardBatch, ReferenceKVCache],
        out: torch.Tensor,
    ) -> torch.Tensor:
        """Write this step's latents to the cache, then attend."""
        (batch, cache), spec = plan, self.spec
        latent_attention.check(spec, queries, latents, len(batch.slot_mapping), out)
        q = queries.view(len(queries), spec.num_heads, -1)
        positions = batch.positions.long()
        rotate(q[..., spec.key_dim :], positions, *self.rope)
        rotate(latents[:, None, spec.rank :], positions, *self.rope)
        made = rms_norm(latents[:, : spec.rank], self.weights.norm, self.weights.eps)
        rows = torch.cat([made, latents[:, spec.rank :]], dim=1)
        written = batch.slot_mapping >= 0
        cache.write(spec.layer, batch.slot_mapping[written], rows[written][:, None])
        starts, size = batch.query_start_loc.tolist(), cache.spec.block_size
        for i, seq_len in enumerate(batch.seq_lens.tolist()):
            begin, end = starts[i : i + 2]
            context = torch.arange(seq_len)
            slots = batch.block_tables[i].long()[context // size] * size + context % size
            mask = context <= torch.arange(seq_len - (end - begin), seq_len)[:, None]
            out[begin:end] = self._attend(q[begin:end], cache, slots, mask)
            if batch.tree_starts is None or batch.tree_slots is None:
                continue
            known = slots[: int(batch.tree_starts[i])]
            for row in range(begin, end):
                path = batch.tree_slots[row][batch.tree_slots[row] >= 0]
                if len(path):
                    seen = torch.cat([known, path])
                    mask = torch.ones(1, len(seen), dtype=torch.bool)
                    out[row] = self._attend(q[row : row + 1], cache, seen, mask)
        return out

    def _attend(
        self, q: torch.Tensor, cache: ReferenceKVCache, slots: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Return (T, N value_dim) of queries over slots (S,)."""
        (rows,) = cache.read(self.spec.layer, slots)
        latents, rotated = rows[:, 0].tensor_split([self.spec.rank], dim=1)
        keys = torch.einsum("sr,nkr->snk", latents, self._keys)
        keys = torch.cat([keys, rotated[:, None].expand(-1, len(self._keys), -1)], dim=2)
        values = torch.einsum("sr,nvr->snv", latents, self._values)
        return attend(q, keys, values, mask, self._attended, None).flatten(1)
