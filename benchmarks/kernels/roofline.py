"""Benches of one kernel: rounds with the measured limits of the machine, and the share reached.

The time that the limits allow is max(bytes read / bandwidth, operations / peak). ``of_roofline`` is
that over the time taken: best over best (what the kernel does when left alone) and median over
median (what it did here).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks import results
from benchmarks.kernels.probe import ProbedRates, measure_machine
from quire.kernels.cpu.native import native


class Work(Protocol):
    """What is timed."""

    seconds: list[float]

    def time(self, clock: Callable[[], float]) -> None:
        """Run and append to ``seconds``."""
        ...


@dataclass
class Call:
    """A call to be timed, and what it must at least read and multiply."""

    name: str
    call: Callable[[], object]
    read_bytes: int
    flops: int
    seconds: list[float] = field(default_factory=list)

    def time(self, clock: Callable[[], float]) -> None:
        """Run twice, the first time to warm up."""
        self.call()
        start = clock()
        self.call()
        self.seconds.append(clock() - start)


def peak_of(dtype: str, speed: ProbedRates) -> float:
    """Return the operations a second of the arithmetic that weights of ``dtype`` are meant for."""
    if dtype == "bfloat16":
        return max(speed.dot_flops, speed.fma_flops)
    if dtype in ("float16", "float32"):
        return speed.fma_flops
    return speed.int8_ops or speed.fma_flops


def create_parser(description: str | None, output: str, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with the options of every bench; ``output`` names the result file."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--isa", choices=native.available_isas(), default=native.isa())
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--output", default=output, help="name of the result file")
    return parser


def run_rounds(works: Sequence[Work], threads: int, num_rounds: int) -> list[ProbedRates]:
    """Time all works once a round, and the machine with them; return its speeds.

    One thread is timed by its processor time, which a busy neighbour does not stretch.
    """
    native.set_num_threads(threads)
    for work in works:
        work.seconds.clear()
    speeds = []
    for _ in range(num_rounds):
        speeds.append(measure_machine(threads))
        for work in works:
            work.time(time.thread_time if threads == 1 else time.perf_counter)
    return speeds


def rates(
    seconds: list[float],
    read_bytes: int,
    operations: int,
    speeds: list[ProbedRates],
    peaks: list[float],
) -> dict[str, Any]:
    """Return times, rates and the fraction of the limits that was reached.

    Args:
        seconds: Of each call.
        read_bytes: A call must read at least.
        operations: A call must do at least.
        speeds: Measured with the calls.
        peaks: Their operations a second, of the kind that the calls do.
    """
    summary = results.summary(seconds)
    reads = [speed.read_bytes_per_second for speed in speeds]
    best = max(read_bytes / max(reads), operations / max(peaks))
    middle = max(read_bytes / statistics.median(reads), operations / statistics.median(peaks))
    return {
        "isa": speeds[0].isa,
        "threads": speeds[0].threads,
        "seconds": summary,
        "gb_per_second": round(read_bytes / summary["min"] / 1e9, 2),
        "gflops": round(operations / summary["min"] / 1e9, 1),
        "read_limit_gb_per_second": round(max(reads) / 1e9, 2),
        "compute_limit_gflops": round(max(peaks) / 1e9, 1),
        "of_roofline_best": round(best / summary["min"], 3),
        "of_roofline_median": round(middle / summary["median"], 3),
    }


def report(rows: Iterable[dict[str, Any]], name: Callable[[dict[str, Any]], str]) -> list[Any]:
    """Print a line for each row as it comes, ``name`` first; return the rows."""
    found = []
    for row in rows:
        found.append(row)
        print(
            f"{row['isa']} {name(row)} T={row['threads']} "
            f"{row['gb_per_second']:8.1f} GB/s {row['gflops']:8.1f} GFLOP/s  of roofline: "
            f"best {row['of_roofline_best']:.2f}, median {row['of_roofline_median']:.2f}",
            flush=True,
        )
    return found
