"""KV cache and paged attention on the native kernels; the maths is in ``kernels/attention.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.kernels import attention
from quire.kernels.backend import AttentionSpec, KVCache, QKNorm
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.cpu.native import KV_DTYPE_CODES, native


class CpuKVCache:
    """K and V of all layers in one native allocation, block after block.

    Attributes:
        nbytes: ``num_blocks * spec.block_bytes``.
    """

    def __init__(self, spec: KVCacheSpec, num_blocks: int) -> None:
        self.spec = spec
        self.num_blocks = num_blocks
        self.native = native.KVCache(
            spec.num_layers,
            num_blocks,
            spec.num_kv_heads,
            spec.head_dim,
            spec.block_size,
            KV_DTYPE_CODES[spec.dtype],
            spec.is_latent,
        )
        self.nbytes: int = self.native.nbytes

    @property
    def block_bytes(self) -> int:
        """Bytes of a block over all layers, scales included."""
        return self.spec.block_bytes

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks ``(source, destination)`` in every layer, in order."""
        self.native.copy_blocks(np.array(pairs, np.int64).reshape(-1, 2), len(pairs))

    def copy_slots(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy slots ``(source, destination)`` in every layer, in order."""
        self.native.copy_slots(np.array(pairs, np.int64).reshape(-1, 2), len(pairs))

    def checksums(self, block_ids: Sequence[int]) -> list[int]:
        """Return a checksum of each block's bytes and scales: XXH64 of the layers' XXH64."""
        found = np.empty(len(block_ids), np.uint64)
        self.native.checksums(np.array(block_ids, np.int64), len(block_ids), found)
        checksums: list[int] = found.tolist()
        return checksums

    def read_blocks(self, block_ids: Sequence[int]) -> np.ndarray:
        """Return (B, bytes of a block over all layers) uint8."""
        data = np.empty((len(block_ids), self.spec.block_bytes), np.uint8)
        self.native.read_blocks(np.array(block_ids, np.int64), len(block_ids), data)
        return data

    def write_blocks(self, block_ids: Sequence[int], data: np.ndarray) -> None:
        """Give blocks the content that was read of others."""
        self.native.write_blocks(np.array(block_ids, np.int64), len(block_ids), data)


class CpuAttention:
    """One layer's attention: a single native call rotates, stores and attends."""

    def __init__(
        self,
        spec: AttentionSpec,
        rope: tuple[np.ndarray, np.ndarray] | None = None,
        qk_norm: QKNorm | None = None,
        sinks: np.ndarray | None = None,
        query_scales: np.ndarray | None = None,
    ) -> None:
        attention.check_spec(spec, rope, qk_norm, sinks, query_scales)
        self.spec = spec
        cosines, sines = rope or (None, None)
        max_positions, half = (0, 0) if cosines is None else cosines.shape
        if query_scales is not None:
            max_positions = len(query_scales)
        self._native = native.PagedAttention(
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            spec.scale,
            spec.sliding_window or 0,
            spec.chunk or 0,
            -1 if spec.ahead is None else spec.ahead,
            spec.score_cap or 0.0,
            max_positions,
            half,
            cosines,
            sines,
            self.spec.rope_sections or (half,),
            *_norm_arguments(qk_norm),
            sinks,
            query_scales,
        )

    def plan(self, batch: ForwardBatch, kv_cache: KVCache) -> Any:
        """Check a step and hold the addresses of its arrays; the cache decides, not the layer."""
        assert isinstance(kv_cache, CpuKVCache)
        attention.check_batch(self.spec, batch)
        attention.check_cache(self.spec, kv_cache.spec)
        return create_plan(batch, kv_cache, len(self.spec.rope_sections) or 1)

    def run(self, qkv: np.ndarray, plan: Any, out: np.ndarray) -> np.ndarray:
        """Write this step's K and V to the cache, then attend."""
        attention.check(self.spec, qkv, plan.num_tokens, out)
        if not self._native.run(qkv, plan, self.spec.layer, out):
            raise attention.refuse_batch()
        return out


def create_plan(batch: ForwardBatch, kv_cache: CpuKVCache, num_sections: int) -> Any:
    """Return a step as the native module has it, whose positions are of ``num_sections``.

    Raises:
        UnsupportedInputError: The step points outside the cache.
    """
    num_requests, max_blocks = batch.block_tables.shape
    positions = batch.positions
    if num_sections > 1 and positions.ndim == 1:
        positions = np.tile(positions, (num_sections, 1))
    plan = native.AttentionPlan(
        batch.slot_mapping.shape[0],
        num_sections,
        positions,
        batch.slot_mapping,
        batch.block_tables,
        num_requests,
        max_blocks,
        batch.query_start_loc,
        batch.seq_lens,
        batch.tree_starts,
        batch.tree_slots,
        0 if batch.tree_slots is None else batch.tree_slots.shape[1],
        batch.last_seen,
        kv_cache.native,
    )
    if not plan.inside:
        raise attention.refuse_batch()
    return plan


def _norm_arguments(norm: QKNorm | None) -> tuple[int, Any, Any, float]:
    if norm is None:
        return 0, None, None, 0.0
    return attention.QK_NORMS.index(norm.kind), norm.queries, norm.keys, norm.eps
