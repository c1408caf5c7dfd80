"""One layer's latent attention against the machine: what it reads, and its arithmetic.

Each query head multiplies a position's row twice, r + R elements for a score and r for a sum: at 16
heads and bfloat16 a byte read is 30 operations, at 128 heads 240. Where that is more than the
processor does while a byte comes from memory, arithmetic is the limit: ``of_bandwidth_limit`` says
which share of the bandwidth it leaves. See :mod:`benchmarks.kernels.attention_steps`.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from benchmarks.kernels import attention_steps, roofline
from quire.kernels.cpu.latent_attention import CpuLatentAttention
from tests.kernels.latent_cases import Latents

SHAPES = {
    "1 head": Latents(heads=1, rank=512, rope=64, key=128, value=128),
    "v2-lite, 16 heads": Latents(heads=16, rank=512, rope=64, key=128, value=128),
    "v3, 128 heads": Latents(heads=128, rank=512, rope=64, key=128, value=128),
}
DTYPES = ("bfloat16", "float32", "int8")
#: name: (queries per request, context, requests)
STEPS = {
    "decode 8 x 4096": (1, 4096, 8),
    "decode 1 x 32768": (1, 32768, 1),
    "chunk 256 after 1792": (256, 2048, 1),
}


def work_of(name: str, case: Latents, queries: int, context: int, requests: int) -> roofline.Call:
    """``requests`` that compute their last ``queries`` of ``context`` tokens."""
    tables = case.tables([context] * requests)
    batch = tables.step([(row, context - queries, context) for row in range(requests)])
    rows = len(batch.positions)
    caches, read_bytes = attention_steps.cold_caches(
        case.cache_spec, tables.num_blocks, queries, requests * context
    )
    weights, rope = case.parameters(max_positions=context)
    weights = replace(weights, dtype="bfloat16")
    attention = CpuLatentAttention(case.spec, weights, rope)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((rows, width), np.float32) for width in case.widths[:2]]
    out = np.empty((rows, case.widths[2]), np.float32)
    plans = itertools.cycle([attention.plan(batch, cache) for cache in caches])
    seen = requests * attention_steps.seen_positions(queries, context)
    flops = 2 * seen * case.heads * (2 * case.rank + case.rope)
    flops += 2 * rows * case.heads * case.rank * (case.key + case.value)
    return roofline.Call(
        name,
        lambda: attention.run(*given, next(plans), out),
        read_bytes + attention.nbytes,
        flops,
    )


if __name__ == "__main__":
    attention_steps.run(__doc__, "kernels_latent_attention", SHAPES, DTYPES, STEPS, work_of)
