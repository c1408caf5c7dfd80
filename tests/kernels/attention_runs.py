"""Run attention cases on the CPU backend and on the reference, on equal inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from quire.kernels.cpu.attention import CpuAttention, CpuKVCache
from quire.kernels.reference.attention import ReferenceAttention
from quire.kernels.reference.kv_cache import ReferenceKVCache
from tests.kernels.attention_cases import Case, Tables
from tests.kernels.torch_copies import tensors

Parts = Sequence[tuple[int, int, int]]


def attend(attention: Any, qkv: Any, batch: Any, cache: Any, out: Any) -> Any:
    """Plan a step and run one layer of it."""
    return attention.run(qkv, attention.plan(batch, cache), out)


def random_qkv(case: Case, lens: Sequence[int]) -> list[np.ndarray]:
    """Return (length, width) rows for each request."""
    rng = np.random.default_rng(7)
    return [rng.standard_normal((length, case.width), dtype=np.float32) for length in lens]


def rows_of(qkv: list[np.ndarray], parts: Parts) -> np.ndarray:
    """Return the step's rows, a fresh copy."""
    return np.concatenate([qkv[row][first:end] for row, first, end in parts])


def run_cpu(case: Case, tables: Tables, qkv: list[np.ndarray], steps: Sequence[Parts]) -> list:
    """Run the steps in turn on a cache full of NaN; each request's (length, N H) rows."""
    attention = CpuAttention(case.spec, **case.parameters())
    cache = CpuKVCache(case.cache_spec, tables.num_blocks)
    cache.native.memory[:] = 0xFF
    cache.native.scales[:] = 0xFF
    return _collect(
        case,
        qkv,
        steps,
        lambda rows, parts, out: attend(attention, rows, tables.step(parts), cache, out),
    )


def run_reference(
    case: Case, tables: Tables, qkv: list[np.ndarray], steps: Sequence[Parts]
) -> list:
    """The same on the reference."""
    attention = ReferenceAttention(case.spec, **tensors(case.parameters()))
    cache = ReferenceKVCache(case.cache_spec, tables.num_blocks)
    return _collect(
        case,
        qkv,
        steps,
        lambda rows, parts, out: attend(
            attention,
            torch.from_numpy(rows),
            tensors(tables.step(parts)),
            cache,
            torch.from_numpy(out),
        ),
    )


def _collect(case: Case, qkv: list[np.ndarray], steps: Sequence[Parts], run: Any) -> list:
    width = case.num_heads * case.head_dim
    results = [np.full((len(rows), width), np.nan, np.float32) for rows in qkv]
    for parts in steps:
        rows = rows_of(qkv, parts)
        out = np.empty((len(rows), width), np.float32)
        run(rows, parts, out)
        at = 0
        for row, first, end in parts:
            results[row][first:end] = out[at : at + end - first]
            at += end - first
    return results


def read_a_copied_block(case: Case) -> tuple[CpuKVCache, Tables, list[np.ndarray]]:
    """Write 5 tokens of one request, copy its blocks to another, compute the sixth token of both.

    Returns:
        The cache, the tables (the copies are the second one's), and both (1, N H) outputs.
    """
    tables, (qkv,) = Tables(case, [6, 6]), random_qkv(case, [6])
    attention = CpuAttention(case.spec, **case.parameters())
    cache = CpuKVCache(case.cache_spec, tables.num_blocks)
    width = case.num_heads * case.head_dim
    out = np.empty((5, width), np.float32)
    attend(attention, qkv[:5].copy(), tables.step([(0, 0, 5)]), cache, out)
    cache.copy_blocks(list(zip(*tables.tables.tolist(), strict=True)))
    outs = [np.empty((1, width), np.float32) for _ in range(2)]
    for row, out in enumerate(outs):
        attend(attention, qkv[5:].copy(), tables.step([(row, 5, 6)]), cache, out)
    return cache, tables, outs
