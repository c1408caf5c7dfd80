"""What attention allocates: nothing the size of repeated heads or of a matrix of scores."""

from __future__ import annotations

import resource
import subprocess
import sys

import numpy as np
import pytest

from quire.kernels.cpu.attention import CpuAttention, CpuKVCache
from quire.kernels.cpu.native import native
from tests.kernels.attention_cases import Case, Tables

MIB = 1 << 20
#: name: (KV dtype, queries, context, bytes that 32 copies of K and V, or all scores, would take)
STEPS = {
    "decode": ("bfloat16", 1, 8192, 2 * 32 * 8192 * 64 * 2),
    "decode from int8": ("int8", 1, 8192, 2 * 32 * 8192 * 64),
    "prefill": ("bfloat16", 1536, 1536, 32 * 1536 * 1536 * 4),
}


def peak_growth(dtype: str, queries: int, context: int) -> int:
    """Return the bytes by which a call of 32 heads on one KV head raises the process's peak."""
    native.set_num_threads(1)
    case = Case(num_heads=32, num_kv_heads=1, head_dim=64, dtype=dtype)
    tables = Tables(case, [context])
    cache = CpuKVCache(case.cache_spec, tables.num_blocks)
    cache.native.memory[:] = 0
    cache.native.scales[:] = 0
    attention = CpuAttention(case.spec, **case.parameters())
    batch = tables.step([(0, context - queries, context)])
    qkv = np.ones((queries, case.width), np.float32)
    out = np.zeros((queries, 32 * 64), np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    attention.run(qkv, attention.plan(batch, cache), out)
    return 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


@pytest.mark.parametrize("step", STEPS)
def test_no_repeat_of_heads_and_no_matrix_of_scores_is_made(step: str) -> None:
    """In a process of its own, whose peak nothing else has raised."""
    dtype, queries, context, forbidden = STEPS[step]
    code = (
        f"from {__name__} import peak_growth; print(peak_growth({dtype!r}, {queries}, {context}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 6 * MIB < forbidden / 4
