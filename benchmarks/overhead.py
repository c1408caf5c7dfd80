"""The share of a decode step that is not kernel time: scheduling, batch building, Python, sampling.

    python -m benchmarks.overhead CHECKPOINT

Every native function is wrapped in a stopwatch; what a step takes beyond the sum is overhead. The
stopwatch's own cost counts as overhead, so the figure errs on the high side.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.engine_steps import start_decoding
from benchmarks.stopwatch import Stopwatch
from quire import LLM

LIMITS = {1: 0.05, 16: 0.15}


def measure(llm: LLM, watch: Stopwatch, batch: int, steps: int) -> dict[str, Any]:
    """Return seconds per step, the share outside kernels and native calls per step."""
    start_decoding(llm, batch, 32, steps)
    totals, shares = [], []
    calls = watch.calls
    for _ in range(steps):
        kernels = watch.seconds.total()
        start = time.perf_counter()
        llm.engine.step()
        total = time.perf_counter() - start
        totals.append(total)
        shares.append(1.0 - (watch.seconds.total() - kernels) / total)
    calls = (watch.calls - calls) // steps
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
    return {
        "batch": batch,
        "step_seconds": results.summary(totals),
        "overhead_share": results.summary(shares),
        "overhead_seconds": statistics.median(a * b for a, b in zip(totals, shares, strict=True)),
        "native_calls_per_step": calls,
        "limit": LIMITS[batch],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    watch = Stopwatch()
    watch.install()
    llm = LLM(
        arguments.checkpoint,
        threads=arguments.threads,
        max_model_len=1024,
        kv_cache_memory_bytes=1 << 30,
    )
    rows = [measure(llm, watch, batch, arguments.steps) for batch in LIMITS]
    table = Table("batch", "step ms", "outside kernels", "ms", "limit", "native calls")
    for row in rows:
        table.add_row(
            str(row["batch"]),
            f"{row['step_seconds']['median'] * 1e3:.1f}",
            f"{row['overhead_share']['median']:.2%}",
            f"{row['overhead_seconds'] * 1e3:.2f}",
            f"{row['limit']:.0%}",
            str(row["native_calls_per_step"]),
        )
    Console().print(table)
    name = arguments.checkpoint.rstrip("/").rpartition("/")[2]
    print(f"written: {results.write('overhead', rows, model=name).name}")


if __name__ == "__main__":
    main()
