"""What the benches of attention share: caches that are not at hand, rounds, figures.

Decode cases own enough caches, used in turn, that rows come from memory and not from a processor
cache; see :mod:`benchmarks.kernels.roofline`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.kernels import roofline
from benchmarks.kernels.probe import ProbedRates
from quire.core.model.kv_cache_spec import KV_DTYPE_BITS, KVCacheSpec
from quire.kernels.cpu.attention import CpuKVCache
from quire.kernels.cpu.native import native

COLD_BYTES = 256 << 20
#: A cache has at least two blocks, however little a case reads of it.
MAX_CACHES = 256


def cold_caches(
    spec: KVCacheSpec, num_blocks: int, queries: int, tokens: int
) -> tuple[list[CpuKVCache], int]:
    """Return full caches for steps of ``queries`` a request, and the bytes that a step reads.

    Args:
        spec: Of the caches; a step reads one layer.
        num_blocks: Of each cache.
        queries: A prefill reads the same cache each time.
        tokens: That a step reads.
    """
    read_bytes = tokens * spec.token_bytes // spec.num_layers
    rng = np.random.default_rng(0)
    caches = []
    for _ in range(min(MAX_CACHES, max(1, COLD_BYTES // read_bytes)) if queries == 1 else 1):
        cache = CpuKVCache(spec, num_blocks)
        # Numbers around 1 in each of the formats, so that no score overflows.
        memory = cache.native.memory.view(np.uint16)
        memory[:] = np.resize(rng.integers(0x3C00, 0x3F00, 1 << 16, np.uint16), memory.shape)
        if KV_DTYPE_BITS[spec.dtype] == 8:
            memory.view(np.uint8)[:] &= 0x37
        cache.native.scales.view(np.uint16)[:] = 0x3C00
        caches.append(cache)
    return caches, read_bytes


def seen_positions(queries: int, context: int) -> int:
    """Return how many positions the last ``queries`` of ``context`` tokens see together."""
    return queries * (context - queries) + queries * (queries + 1) // 2


def _figures(shape: str, work: roofline.Call, speeds: list[ProbedRates]) -> dict[str, Any]:
    """Return times, rates and the fraction of the limits that was reached."""
    arithmetic = "bfloat16" if shape.endswith("bfloat16") else "float32"
    peaks = [roofline.peak_of(arithmetic, speed) for speed in speeds]
    rates = roofline.rates(work.seconds, work.read_bytes, work.flops, speeds, peaks)
    share = rates["gb_per_second"] / rates["read_limit_gb_per_second"]
    ratio = rates["compute_limit_gflops"] * work.read_bytes / work.flops
    most = min(1.0, ratio / rates["read_limit_gb_per_second"])
    return {
        "shape": shape,
        "step": work.name,
        **rates,
        "of_bandwidth_best": round(share, 3),
        "of_bandwidth_limit": round(most, 3),
    }


def run(
    description: str | None,
    output: str,
    shapes: Mapping[str, Any],
    dtypes: Sequence[str],
    steps: Mapping[str, tuple[int, int, int]],
    work_of: Callable[..., roofline.Call],
) -> None:
    """Time every case asked for, print a line for each, write ``results/<output>.json``.

    Args:
        description: Of the bench.
        output: Name of the result file.
        shapes: Cases by name; each has a ``dtype``, the cache's.
        dtypes: That cases may have.
        steps: By name: (queries per request, context, requests).
        work_of: ``work_of(step's name, case, *step)`` makes what is timed.
    """
    parser = roofline.create_parser(description, output, rounds=11)
    parser.add_argument("--shape", nargs="+", choices=list(shapes), default=list(shapes))
    parser.add_argument("--dtype", nargs="+", choices=dtypes, default=list(dtypes))
    parser.add_argument("--step", nargs="+", choices=list(steps), default=list(steps))
    options = parser.parse_args()
    native.set_isa(options.isa)

    def measure() -> Iterator[dict[str, Any]]:
        for shape, dtype in itertools.product(options.shape, options.dtype):
            case = replace(shapes[shape], dtype=dtype)
            works = [work_of(name, case, *steps[name]) for name in options.step]
            for threads in options.threads:
                speeds = roofline.run_rounds(works, threads, options.rounds)
                yield from (_figures(f"{shape} {dtype}", work, speeds) for work in works)

    rows = roofline.report(measure(), lambda row: f"{row['shape']:27} {row['step']:22}")
    print(results.write(options.output, rows, warmup=1, rounds=options.rounds))
