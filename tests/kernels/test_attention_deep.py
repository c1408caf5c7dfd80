"""Attention after 131,072 tokens: the rows of a plain softmax, one by one or in a chunk."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from quire.kernels.cpu.attention import CpuAttention, CpuKVCache
from tests.kernels.attention_cases import Case, Tables
from tests.kernels.attention_runs import attend
from tests.kernels.paired_attention import PAIR_ISAS
from tests.sizes import sized

pytestmark = pytest.mark.kernels("rope_and_cache", "paged_attention")

CONTEXT = 131_072
#: Computed, at the end of the context.
NUM_ROWS = sized(18, 34)
CHUNK = 8192


def write_all(case: Case, tables: Tables, qkv: np.ndarray, kv_cache: CpuKVCache) -> None:
    """Store K and V of every token but the last ones; each query sees its own token alone."""
    spec = Case(case.num_heads, case.num_kv_heads, case.head_dim, window=1, dtype=case.dtype).spec
    attention = CpuAttention(spec, **case.parameters())
    for first in range(0, CONTEXT - NUM_ROWS, CHUNK):
        end = min(first + CHUNK, CONTEXT - NUM_ROWS)
        out = np.empty((end - first, case.num_heads * case.head_dim), np.float32)
        attend(attention, qkv[first:end].copy(), tables.step([(0, first, end)]), kv_cache, out)


def plain_rows(case: Case, qkv: np.ndarray, count: int) -> np.ndarray:
    """Return the last ``count`` rows of causal attention in float64, (count, N H)."""
    heads = qkv.reshape(CONTEXT, -1, case.head_dim).transpose(1, 0, 2)
    queries, others = np.split(heads, [case.num_heads])
    keys, values = np.split(others.astype(np.float64), 2)
    rows = np.empty((count, case.num_heads, case.head_dim))
    for row in range(count):
        end = CONTEXT - count + row + 1
        for head in range(case.num_heads):
            group = head * case.num_kv_heads // case.num_heads
            scores = keys[group, :end] @ queries[head, end - 1] * case.head_dim**-0.5
            weights = np.exp(scores - scores.max())
            rows[row, head] = weights @ values[group, :end] / weights.sum()
    return rows.reshape(count, -1)


def exact_qkv(case: Case, mean: float) -> np.ndarray:
    """Return (length, width) rows of which every cache holds K and V as they are.

    Args:
        mean: First element of every key. As it is equal for all tokens, it moves no weight.
    """
    rng = np.random.default_rng(7)
    qkv = rng.integers(-8, 9, (CONTEXT, case.width)).astype(np.float32) / 8
    num_queries = case.num_heads * case.head_dim
    qkv[:, :num_queries] *= 4  # rows far from the mean of all values
    qkv[:, num_queries :: case.head_dim] = mean
    return qkv


@pytest.fixture(scope="module")
def exact() -> Callable[[Case], tuple[np.ndarray, np.ndarray]]:
    """Return a function that gives rows of a cache's type and the last three of attention."""

    @cache
    def made(mean: float) -> tuple[np.ndarray, np.ndarray]:
        case = Case(num_heads=4, num_kv_heads=1, head_dim=32)
        qkv = exact_qkv(case, mean)
        return qkv, plain_rows(case, qkv, 3)

    # The scale of 8-bit integers is then 1/16.
    return lambda case: made(127 / 16 if case.dtype == "int8" else 1.0)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "fp8_e4m3", "int8"])
def test_the_last_rows_of_131072_tokens(
    isa: str,
    threads: int,
    dtype: str,
    exact: Callable[[Case], tuple[np.ndarray, np.ndarray]],
) -> None:
    case = Case(num_heads=4, num_kv_heads=1, head_dim=32, dtype=dtype)
    tables, (qkv, want) = Tables(case, [CONTEXT]), exact(case)
    kv_cache = CpuKVCache(case.cache_spec, tables.num_blocks)
    write_all(case, tables, qkv, kv_cache)
    attention = CpuAttention(case.spec, **case.parameters())
    first, outs = CONTEXT - NUM_ROWS, []
    for steps in ([(first, CONTEXT)], [(at, at + 1) for at in range(first, CONTEXT)]):
        out = np.empty((NUM_ROWS, case.num_heads * case.head_dim), np.float32)
        for begin, end in steps:
            batch = tables.step([(0, begin, end)])
            attend(
                attention, qkv[begin:end].copy(), batch, kv_cache, out[begin - first : end - first]
            )
        outs.append(out)
    np.testing.assert_array_equal(outs[0], outs[1])
    # Pairs of bfloat16 are multiplied by weights that are rounded too.
    atol = 1e-3 if dtype == "bfloat16" and isa in PAIR_ISAS else 1e-5
    np.testing.assert_allclose(outs[0][-3:], want, atol=atol)
