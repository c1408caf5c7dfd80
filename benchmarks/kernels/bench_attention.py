"""One layer's attention against the machine: decode by what it reads, prefill by its arithmetic.

See :mod:`benchmarks.kernels.attention_steps`.
"""

from __future__ import annotations

import itertools

import numpy as np

from benchmarks.kernels import attention_steps, roofline
from quire.kernels.cpu.attention import CpuAttention
from tests.kernels.attention_cases import Case, Tables

SHAPES = {
    "1b": Case(num_heads=32, num_kv_heads=8, head_dim=64, rotary_dim=64),
    "0.6b": Case(num_heads=16, num_kv_heads=8, head_dim=128, rotary_dim=128),
    "7b mha": Case(num_heads=32, num_kv_heads=32, head_dim=128, rotary_dim=128),
}
DTYPES = ("bfloat16", "float16", "fp8_e4m3", "int8", "int4")
#: name: (queries per request, context, requests)
STEPS = {
    "decode 1 x 2048": (1, 2048, 1),
    "decode 16 x 2048": (1, 2048, 16),
    "decode 1 x 8192": (1, 8192, 1),
    "decode 1 x 32768": (1, 32768, 1),
    "decode 1 x 131072": (1, 131072, 1),
    "prefill 2048": (2048, 2048, 1),
    "chunk 256 after 1792": (256, 2048, 1),
    "chunk 256 after 7936": (256, 8192, 1),
    "chunk 256 after 130816": (256, 131072, 1),
}


def work_of(name: str, case: Case, queries: int, context: int, requests: int) -> roofline.Call:
    """``requests`` that compute their last ``queries`` of ``context`` tokens."""
    tables = Tables(case, [context] * requests)
    batch = tables.step([(row, context - queries, context) for row in range(requests)])
    caches, read_bytes = attention_steps.cold_caches(
        case.cache_spec, tables.num_blocks, queries, requests * context
    )
    attention = CpuAttention(case.spec, **case.parameters(max_positions=context))
    rows = len(batch.positions)
    rng = np.random.default_rng(0)
    qkv = rng.standard_normal((rows, case.width), dtype=np.float32)
    out = np.empty((rows, case.num_heads * case.head_dim), np.float32)
    plans = itertools.cycle([attention.plan(batch, cache) for cache in caches])
    seen = requests * attention_steps.seen_positions(queries, context)
    flops = 4 * seen * case.num_heads * case.head_dim
    return roofline.Call(name, lambda: attention.run(qkv, next(plans), out), read_bytes, flops)


if __name__ == "__main__":
    attention_steps.run(__doc__, "kernels_attention", SHAPES, DTYPES, STEPS, work_of)
