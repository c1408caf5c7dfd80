"""Attention cases for tests and benchmarks: shapes, and a step built from context lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.kernels.backend import AttentionSpec, QKNorm
from quire.kernels.batch.forward_batch import ForwardBatch


@dataclass(frozen=True)
class Case:
    """One layer and its cache.

    Attributes:
        rotary_dim: 0 for no rotation.
        sections: Rotary pairs of each row of positions; empty for one position a token.
        qk_norm: How queries and keys are normalised; empty for not at all.
        chunk, ahead, score_cap: See :class:`AttentionSpec`.
        sinks: Whether each head has one.
        scaled: Whether queries are multiplied by a number of their position.
    """

    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    window: int | None = None
    chunk: int | None = None
    rotary_dim: int = 0
    sections: tuple[int, ...] = ()
    qk_norm: str = ""
    ahead: int | None = 0
    score_cap: float | None = None
    sinks: bool = False
    scaled: bool = False
    block_size: int = 16
    dtype: str = "float32"

    @property
    def width(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def spec(self) -> AttentionSpec:
        return AttentionSpec(
            layer=1,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            sliding_window=self.window,
            chunk=self.chunk,
            ahead=self.ahead,
            score_cap=self.score_cap,
            rope_sections=self.sections,
        )

    @property
    def cache_spec(self) -> KVCacheSpec:
        return KVCacheSpec(2, self.num_kv_heads, self.head_dim, self.block_size, self.dtype)

    def parameters(self, max_positions: int = 4096) -> dict[str, object]:
        """Return the arguments of ``Backend.attention`` after the spec, as numpy."""
        rng = np.random.default_rng(1)
        rope = norm = sinks = scales = None
        if self.rotary_dim:
            half = self.rotary_dim // 2
            angles = np.outer(np.arange(max_positions), 1e4 ** -(np.arange(half) / half))
            rope = (np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
        if self.qk_norm:
            norm = QKNorm(
                self.qk_norm,
                *(
                    rng.uniform(0.5, 1.5, self._norm_shape(heads)).astype(np.float32)
                    for heads in (self.num_heads, self.num_kv_heads)
                ),
                eps=1e-6,
            )
        if self.sinks:
            sinks = rng.uniform(-1, 3, self.num_heads).astype(np.float32)
        if self.scaled:
            scales = rng.uniform(0.5, 2, max_positions).astype(np.float32)
        return {"rope": rope, "qk_norm": norm, "sinks": sinks, "query_scales": scales}

    def _norm_shape(self, heads: int) -> tuple[int, ...]:
        shapes = {"rms_of_rows": (heads * self.head_dim,), "layer_of_heads": (heads, self.head_dim)}
        return shapes.get(self.qk_norm, (self.head_dim,))


SHAPES = {
    "gqa": Case(),
    "mha": Case(num_heads=3, num_kv_heads=3, head_dim=64),
    "mqa": Case(num_heads=5, num_kv_heads=1, head_dim=16),
    "wide group": Case(num_heads=13, num_kv_heads=1, head_dim=8),
    "odd head": Case(num_heads=7, num_kv_heads=1, head_dim=20),
    "head 128": Case(num_heads=6, num_kv_heads=2, head_dim=128),
    "window": Case(window=23),
    "long window": Case(window=300, num_heads=8, num_kv_heads=2),
    "chunk": Case(chunk=23),
    "long chunk": Case(chunk=300, num_heads=8, num_kv_heads=2, window=310),
    "scaled queries": Case(num_heads=6, scaled=True),
    "scaled and turned": Case(rotary_dim=32, scaled=True),
    "rope": Case(rotary_dim=32, qk_norm="rms_of_heads"),
    "partial rope": Case(rotary_dim=12, head_dim=40),
    "norm of rows": Case(rotary_dim=32, qk_norm="rms_of_rows", num_heads=6),
    "norms of layers": Case(rotary_dim=20, head_dim=20, qk_norm="layer_of_heads"),
    "sinks": Case(window=300, num_heads=8, num_kv_heads=2, sinks=True),
    "soft cap": Case(num_heads=6, score_cap=1.5, head_dim=64),
}


class Tables:
    """Block tables of requests in a pool of blocks, in random order.

    Attributes:
        last_seen: By position, the last position that is seen from it; None for its own.
    """

    def __init__(self, case: Case, max_lens: Sequence[int], seed: int = 0) -> None:
        counts = [-(-length // case.block_size) for length in max_lens]
        self.num_blocks = sum(counts) + 1
        ids = np.random.default_rng(seed).permutation(np.arange(1, self.num_blocks))
        self.tables = np.zeros((len(counts), max(counts, default=0)), np.int32)
        for row, count in enumerate(counts):
            self.tables[row, :count], ids = ids[:count], ids[count:]
        self.block_size = case.block_size
        self.last_seen: np.ndarray | None = None

    def step(self, parts: Sequence[tuple[int, int, int]]) -> ForwardBatch:
        """Return the batch of (request, first position, end position) parts."""
        positions = np.concatenate(
            [np.arange(first, end) for _, first, end in parts] or [np.empty(0)]
        ).astype(np.int32)
        owner = np.concatenate(
            [np.full(end - first, row) for row, first, end in parts] or [np.empty(0)]
        ).astype(np.int64)
        blocks = self.tables[owner, positions // self.block_size].astype(np.int64)
        lengths = [end - first for _, first, end in parts]
        return ForwardBatch(
            input_ids=np.zeros(len(positions), np.int32),
            positions=positions,
            slot_mapping=blocks * self.block_size + positions % self.block_size,
            block_tables=np.ascontiguousarray(self.tables[[row for row, _, _ in parts]]),
            query_start_loc=np.cumsum([0, *lengths]).astype(np.int32),
            seq_lens=np.array([end for _, _, end in parts], np.int32),
            logits_indices=np.zeros(0, np.int32),
            last_seen=None if self.last_seen is None else self.last_seen[positions],
        )
