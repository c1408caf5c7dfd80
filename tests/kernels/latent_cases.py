"""Cases of latent attention for tests and benchmarks: shapes, weights and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.kernels.attention_protocol import LatentSpec, LatentWeights
from quire.kernels.matrices.host_tensor import HostTensor
from tests.kernels.attention_cases import Case, Tables


@dataclass(frozen=True)
class Latents:
    """One layer and its cache; ``key`` and ``value`` are elements of a head."""

    heads: int = 4
    rank: int = 40
    rope: int = 12
    key: int = 20
    value: int = 18
    block_size: int = 16
    dtype: str = "float32"

    @property
    def spec(self) -> LatentSpec:
        scale = (self.key + self.rope) ** -0.5
        return LatentSpec(1, self.heads, self.rank, self.rope, self.key, self.value, scale)

    @property
    def cache_spec(self) -> KVCacheSpec:
        size = self.rank + self.rope
        return KVCacheSpec(2, 1, size, self.block_size, self.dtype, is_latent=True)

    @property
    def widths(self) -> tuple[int, int, int]:
        queries = self.heads * (self.key + self.rope)
        return queries, self.rank + self.rope, self.heads * self.value

    def parameters(
        self, max_positions: int = 4096
    ) -> tuple[LatentWeights, tuple[np.ndarray, np.ndarray]]:
        rng, half = np.random.default_rng(1), self.rope // 2
        angles = np.outer(np.arange(max_positions), 1e4 ** -(np.arange(half) / half))
        shape = self.heads * (self.key + self.value), self.rank
        values = rng.standard_normal(shape, np.float32) * np.float32(self.rank**-0.5)
        norm = rng.uniform(0.5, 1.5, self.rank).astype(np.float32)
        weights = LatentWeights(norm, 1e-6, HostTensor("kv_b", "float32", values), "float32")
        return weights, (np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))

    def tables(self, lens: Sequence[int], seed: int = 0) -> Tables:
        return Tables(Case(block_size=self.block_size), lens, seed)


SHAPES = {
    "odd": Latents(),
    "lite": Latents(heads=16, rank=512, rope=64, key=128, value=128),
    "five": Latents(heads=5, rank=32, rope=2, key=7, value=3),
    "twenty": Latents(heads=20, rank=64, rope=12),
}
