"""One layer's attention against the machine: decode by what it reads, prefill by its arithmetic.

Decode cases own enough caches, used in turn, that K and V come from memory and not from a processor
cache; see :mod:`benchmarks.kernels.roofline`.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.kernels import roofline
from quire.core.kv_cache_spec import KV_DTYPE_BITS
from quire.kernels.cpu.attention import CpuAttention, CpuKVCache
from quire.kernels.cpu.native import native
from quire.kernels.cpu.probe import MachineSpeed
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
COLD_BYTES = 256 << 20
#: A cache has at least two blocks, however little a case reads of it.
MAX_CACHES = 256


def work_of(name: str, case: Case, queries: int, context: int, requests: int) -> roofline.Call:
    """``requests`` that compute their last ``queries`` of ``context`` tokens."""
    tables = Tables(case, [context] * requests)
    batch = tables.step([(row, context - queries, context) for row in range(requests)])
    spec = case.cache_spec
    read_bytes = requests * context * spec.token_bytes // spec.num_layers
    rng = np.random.default_rng(0)
    caches = []
    for _ in range(min(MAX_CACHES, max(1, COLD_BYTES // read_bytes)) if queries == 1 else 1):
        cache = CpuKVCache(case.cache_spec, tables.num_blocks)
        # Numbers around 1 in each of the formats, so that no score overflows.
        memory = cache.native.memory.view(np.uint16)
        memory[:] = np.resize(rng.integers(0x3C00, 0x3F00, 1 << 16, np.uint16), memory.shape)
        if KV_DTYPE_BITS[case.dtype] == 8:
            memory.view(np.uint8)[:] &= 0x37
        cache.native.scales.view(np.uint16)[:] = 0x3C00
        caches.append(cache)
    attention = CpuAttention(case.spec, **case.parameters(max_positions=context))
    rows = len(batch.positions)
    qkv = rng.standard_normal((rows, case.width), dtype=np.float32)
    out = np.empty((rows, case.num_heads * case.head_dim), np.float32)
    plans = itertools.cycle([attention.plan(batch, cache) for cache in caches])
    seen = queries * (context - queries) + queries * (queries + 1) // 2
    flops = 4 * requests * seen * case.num_heads * case.head_dim
    return roofline.Call(name, lambda: attention.run(qkv, next(plans), out), read_bytes, flops)


def figures(shape: str, work: roofline.Call, speeds: list[MachineSpeed]) -> dict[str, Any]:
    """Return times, rates and the fraction of the limits that was reached."""
    arithmetic = "bfloat16" if shape.endswith("bfloat16") else "float32"
    peaks = [roofline.peak_of(arithmetic, speed) for speed in speeds]
    rates = roofline.rates(work.seconds, work.read_bytes, work.flops, speeds, peaks)
    return {"shape": shape, "step": work.name, **rates}


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the figures of every case asked for."""
    for shape, dtype in itertools.product(options.shape, options.dtype):
        case = replace(SHAPES[shape], dtype=dtype)
        works = [work_of(name, case, *STEPS[name]) for name in options.step]
        for threads in options.threads:
            speeds = roofline.run_rounds(works, threads, options.rounds)
            yield from (figures(f"{shape} {dtype}", work, speeds) for work in works)


def main() -> None:
    """Run, print a line a case, write ``results/kernels_attention.json``."""
    parser = roofline.create_parser(__doc__, "kernels_attention", rounds=11)
    parser.add_argument("--shape", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--step", nargs="+", choices=list(STEPS), default=list(STEPS))
    options = parser.parse_args()
    native.set_isa(options.isa)
    rows = roofline.report(measure(options), lambda row: f"{row['shape']:16} {row['step']:22}")
    print(results.write(options.output, rows, warmup=1, rounds=options.rounds))


if __name__ == "__main__":
    main()
