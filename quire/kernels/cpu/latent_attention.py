"""Latent attention on the native kernels; the maths is in ``kernels/latent_attention.py``."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire.kernels import attention, latent_attention
from quire.kernels.attention_protocol import AttentionSpec, KVCache, LatentSpec, LatentWeights
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.cpu.attention import CpuKVCache, create_plan
from quire.kernels.cpu.linear import CpuLinear
from quire.kernels.cpu.native import native
from quire.kernels.matrices.host_tensor import HostTensor


class CpuLatentAttention:
    """One layer: a single native call multiplies queries, stores, attends and multiplies sums.

    Attributes:
        nbytes: Memory of what queries and sums are multiplied with.
    """

    def __init__(
        self, spec: LatentSpec, weights: LatentWeights, rope: tuple[np.ndarray, np.ndarray]
    ) -> None:
        latent_attention.check_spec(spec, weights, rope)
        self.spec = spec
        given = weights.heads
        heads = given.array.reshape(spec.num_heads, spec.key_dim + spec.value_dim, spec.rank)

        def pack(matrices: np.ndarray) -> list[CpuLinear]:
            tensors = [
                HostTensor(given.name, given.dtype, np.ascontiguousarray(m)) for m in matrices
            ]
            return [CpuLinear([tensor], dtype=weights.dtype) for tensor in tensors]

        keys = pack(heads[:, : spec.key_dim].transpose(0, 2, 1))
        values = pack(heads[:, spec.key_dim :])
        self.nbytes = sum(linear.nbytes for linear in (*keys, *values))
        self._native = native.LatentAttention(
            spec.rank,
            spec.rope_dim // 2,
            spec.key_dim,
            spec.value_dim,
            spec.scale,
            len(rope[0]),
            *rope,
            weights.norm,
            weights.eps,
            [linear.matrices[0][0] for linear in keys],
            [linear.matrices[0][0] for linear in values],
        )
        self._as_heads = AttentionSpec(spec.layer, spec.num_heads, 1, spec.row_dim, spec.scale)

    def plan(self, batch: ForwardBatch, kv_cache: KVCache) -> Any:
        """Check a step and hold the addresses of its arrays."""
        assert isinstance(kv_cache, CpuKVCache)
        attention.check_batch(self._as_heads, batch)
        latent_attention.check_cache(self.spec, kv_cache.spec)
        return create_plan(batch, kv_cache, num_sections=1)

    def run(self, queries: np.ndarray, latents: np.ndarray, plan: Any, out: np.ndarray) -> Any:
        """Write this step's latents to the cache, then attend."""
        latent_attention.check(self.spec, queries, latents, plan.num_tokens, out)
        if not self._native.run(queries, latents, plan, self.spec.layer, out):
            raise attention.refuse_batch()
        return out
