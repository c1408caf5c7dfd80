"""One layer's latent attention against the machine: what it reads, and its arithmetic.

Each query head multiplies a position's row twice, r + R elements for a score and r for a sum: at 16
heads and bfloat16 a byte read is 30 operations, at 128 heads 240, so that arithmetic bounds most of
it; see :mod:`benchmarks.kernels.roofline`. Decode cases own that many caches that rows come from
memory.
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
from quire.kernels.cpu.attention import CpuKVCache
from quire.kernels.cpu.latent_attention import CpuLatentAttention
from quire.kernels.cpu.native import native
from quire.kernels.cpu.probe import MachineSpeed
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
COLD_BYTES = 256 << 20


def work_of(name: str, case: Latents, queries: int, context: int, requests: int) -> roofline.Call:
    """``requests`` that compute their last ``queries`` of ``context`` tokens."""
    tables = case.tables([context] * requests)
    batch = tables.step([(row, context - queries, context) for row in range(requests)])
    spec, rows = case.cache_spec, len(batch.positions)
    read_bytes = requests * context * spec.token_bytes // spec.num_layers
    rng = np.random.default_rng(0)
    caches = []
    for _ in range(max(1, COLD_BYTES // read_bytes) if queries == 1 else 1):
        cache = CpuKVCache(spec, tables.num_blocks)
        # Numbers around 1 in each of the formats.
        memory = cache.native.memory.view(np.uint16)
        memory[:] = np.resize(rng.integers(0x3C00, 0x3F00, 1 << 16, np.uint16), memory.shape)
        cache.native.scales.view(np.uint16)[:] = 0x3C00
        caches.append(cache)
    weights, rope = case.parameters(max_positions=context)
    weights = replace(weights, dtype="bfloat16")
    attention = CpuLatentAttention(case.spec, weights, rope)
    given = [rng.standard_normal((rows, width), np.float32) for width in case.widths[:2]]
    out = np.empty((rows, case.widths[2]), np.float32)
    plans = itertools.cycle([attention.plan(batch, cache) for cache in caches])
    seen = queries * (context - queries) + queries * (queries + 1) // 2
    flops = 2 * requests * seen * case.heads * (2 * case.rank + case.rope)
    flops += 2 * rows * case.heads * case.rank * (case.key + case.value)
    return roofline.Call(
        name,
        lambda: attention.run(*given, next(plans), out),
        read_bytes + attention.nbytes,
        flops,
    )


def figures(shape: str, work: roofline.Call, speeds: list[MachineSpeed]) -> dict[str, Any]:
    """Return times, rates and the fraction of the limits that was reached."""
    arithmetic = "bfloat16" if shape.endswith("bfloat16") else "float32"
    peaks = [roofline.peak_of(arithmetic, speed) for speed in speeds]
    rates = roofline.rates(work.seconds, work.read_bytes, work.flops, speeds, peaks)
    share = rates["gb_per_second"] / rates["read_limit_gb_per_second"]
    return {"shape": shape, "step": work.name, **rates, "of_bandwidth_best": round(share, 3)}


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the figures of every case asked for."""
    for shape, dtype in itertools.product(options.shape, options.dtype):
        case = replace(SHAPES[shape], dtype=dtype)
        works = [work_of(name, case, *STEPS[name]) for name in options.step]
        for threads in options.threads:
            speeds = roofline.run_rounds(works, threads, options.rounds)
            yield from (figures(f"{shape} {dtype}", work, speeds) for work in works)


def main() -> None:
    """Run, print a line a case, write ``results/kernels_latent_attention.json``."""
    parser = roofline.create_parser(__doc__, "kernels_latent_attention", rounds=11)
    parser.add_argument("--shape", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--step", nargs="+", choices=list(STEPS), default=list(STEPS))
    options = parser.parse_args()
    native.set_isa(options.isa)
    rows = roofline.report(measure(options), lambda row: f"{row['shape']:27} {row['step']:21}")
    print(results.write(options.output, rows, warmup=1, rounds=options.rounds))


if __name__ == "__main__":
    main()
