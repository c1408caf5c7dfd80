"""The share of a decode step that is not kernel time: scheduling, batch building, Python, sampling.

    python -m benchmarks.overhead CHECKPOINT

Every native function is wrapped in a stopwatch; what a step takes beyond the sum is overhead. The
stopwatch's own cost counts as overhead, so the figure errs on the high side. It is stated in parts,
too: planning, running (batch building, layers, sampling) and update; after the step comes the
message to the server.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.engine_steps import start_decoding, stop_decoding
from benchmarks.stopwatch import Stopwatch
from quire import LLM
from quire.llm.process.engine_messages import Step

#: Of a step's time, by batch; larger ones are stated alone.
LIMITS = {1: 0.05, 16: 0.15}
BATCHES = (1, 16, 32, 256, 1024)
_encode = msgspec.msgpack.Encoder().encode


def measure(llm: LLM, watch: Stopwatch, batch: int, steps: int) -> dict[str, Any]:
    """Return seconds per step, the share outside kernels, its parts and native calls per step."""
    start_decoding(llm, batch, 32, steps)
    engine = llm.engine.engine
    stages = engine.scheduler.stats.step_seconds
    totals, shares, encoding = [], [], []
    calls, before = watch.calls, dict(stages)
    for _ in range(steps):
        kernels = watch.seconds.total()
        start = time.perf_counter()
        outputs = engine.step()
        total = time.perf_counter() - start
        totals.append(total)
        shares.append(1.0 - (watch.seconds.total() - kernels) / total)
        start = time.perf_counter()
        _encode(Step(outputs))
        encoding.append(time.perf_counter() - start)
    calls = (watch.calls - calls) // steps
    outside = [total * share for total, share in zip(totals, shares, strict=True)]
    parts = {name: (stages[name] - before[name]) / steps for name in ("schedule", "update")}
    parts["run"] = statistics.mean(outside) - sum(parts.values())
    parts["encode"] = statistics.mean(encoding)
    stop_decoding(llm)
    return {
        "batch": batch,
        "step_seconds": results.summary(totals),
        "overhead_share": results.summary(shares),
        "overhead_seconds": statistics.median(outside),
        "overhead_seconds_per_token": {name: part / batch for name, part in parts.items()},
        "native_calls_per_step": calls,
        "limit": LIMITS.get(batch),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--name", default="overhead", help="of the result file")
    parser.add_argument("--no-result", action="store_true", help="write no result file")
    arguments = parser.parse_args()
    watch = Stopwatch()
    watch.install()
    llm = LLM(
        arguments.checkpoint,
        threads=arguments.threads,
        max_model_len=1024,
        max_num_seqs=max(arguments.batches),
        kv_cache_memory_bytes=1 << 30,
    )
    rows = [measure(llm, watch, batch, arguments.steps) for batch in arguments.batches]
    names = ("schedule", "run", "update", "encode")
    of_a_token = [f"{name} µs/token" for name in names]
    table = Table("batch", "step ms", "outside kernels", "limit", *of_a_token, "native calls")
    for row in rows:
        table.add_row(
            str(row["batch"]),
            f"{row['step_seconds']['median'] * 1e3:.1f}",
            f"{row['overhead_share']['median']:.2%}",
            f"{row['limit'] or 1:.0%}",
            *(f"{row['overhead_seconds_per_token'][name] * 1e6:.2f}" for name in names),
            str(row["native_calls_per_step"]),
        )
    Console().print(table)
    if not arguments.no_result:
        name = arguments.checkpoint.rstrip("/").rpartition("/")[2]
        print(f"written: {results.write(arguments.name, rows, model=name).name}")


if __name__ == "__main__":
    main()
