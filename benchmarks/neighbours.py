"""Decode and prefill next to a process that computes all the time, and under CPU quotas.

    scripts/bench neighbours MODEL.gguf [--rounds 7]

With T threads and one neighbour on T cores, the operating system's fair share is T * T / (T + 1)
cores: all but one of them, and the last for a part of the time. ``of_fair_share`` is the rate
reached over what that many cores give, between the rates alone with T - 1 and with T threads.
Quotas need a control group of version 1 that this process may make; elsewhere they are left out.
A case during which others took part of the machine is run again.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.engine_steps import decode_seconds, prefill_seconds, start_decoding
from benchmarks.peers.compare import neighbour
from benchmarks.peers.quiet import MAX_FOREIGN, Watch
from quire import LLM
from quire.kernels.cpu.native import native
from quire.system.machine import read_machine

GROUP = Path("/sys/fs/cgroup/cpu")
PERIOD = 100_000
QUOTAS = (0.5, 1.0, 1.5)
STEPS, PROMPT, RETRIES = 24, 256, 3
#: Tokens per second by kind of work, one value a round.
Rates = dict[str, list[float]]


@contextmanager
def quota(cores: float) -> Iterator[None]:
    """Let this process have that many cores' worth of time."""
    group = GROUP / f"quire-bench-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_quota_us").write_text(str(int(cores * PERIOD)))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (GROUP / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


class Neighbours:
    """One loaded model, and what it reached under each condition."""

    def __init__(self, path: Path, threads: int) -> None:
        self.threads = threads
        self.llm = LLM(
            str(path),
            threads=threads,
            max_model_len=512,
            kv_cache_memory_bytes=1 << 28,
            enable_prefix_caching=False,
        )
        self.rates: dict[str, Rates] = {}
        self.noisy: dict[str, int] = {}
        self.best = Watch([]).best

    def rate(self) -> dict[str, float]:
        """Return tokens per second of one stream and of a prompt."""
        start_decoding(self.llm, 1, 1, STEPS)
        decode = STEPS / sum(decode_seconds(self.llm, 1, STEPS))
        return {"decode": decode, "prefill": PROMPT / prefill_seconds(self.llm, PROMPT)}

    def measure(self, name: str, threads: int, condition: Callable[[], Any]) -> None:
        """Run under a condition, again while others take part of the machine."""
        native.set_num_threads(threads)
        for attempt in range(RETRIES):
            with condition() as pids:
                watch = Watch(list(pids or ()), self.best)
                watch.begin()
                found = self.rate()
                verdict = watch.end()
            if verdict.foreign <= MAX_FOREIGN:
                break
            if attempt == RETRIES - 1:
                self.noisy[name] = self.noisy.get(name, 0) + 1
        for kind, rate in found.items():
            self.rates.setdefault(name, {}).setdefault(kind, []).append(rate)

    def run(self, rounds: int) -> None:
        """Measure every condition once a round."""
        self.rate()
        with_quotas = os.access(GROUP / "cgroup.procs", os.W_OK)
        for _ in range(rounds):
            self.measure("alone", self.threads, nullcontext)
            self.measure("alone, a thread less", self.threads - 1, nullcontext)
            self.measure("next to a neighbour", self.threads, neighbour)
            for cores in QUOTAS if with_quotas else ():
                with quota(cores):
                    chosen = read_machine().num_cores
                limit = f"quota of {cores:g} cores"
                self.measure(f"{limit}, {chosen} by default", chosen, lambda c=cores: quota(c))
                if chosen < self.threads:
                    name = f"{limit}, {self.threads} threads"
                    self.measure(name, self.threads, lambda c=cores: quota(c))

    def table(self) -> list[dict[str, Any]]:
        """Return a row a condition and kind of work, with its part of the rate alone."""
        rows = []
        last = 1 / (self.threads + 1)  # of the last core, next to the neighbour
        for name, kinds in self.rates.items():
            for kind, rates in kinds.items():
                alone, less = (self.rates[base][kind] for base in ("alone", "alone, a thread less"))
                row = {
                    "condition": name,
                    "kind": kind,
                    "tokens_per_second": results.summary(rates),
                    "of_alone": median(a / b for a, b in zip(rates, alone, strict=True)),
                    "rounds_not_quiet": self.noisy.get(name, 0),
                }
                if name == "next to a neighbour":
                    fair = [a * last + b * (1 - last) for a, b in zip(alone, less, strict=True)]
                    row["of_fair_share"] = median(a / b for a, b in zip(rates, fair, strict=True))
                rows.append(row)
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=read_machine().num_cores)
    arguments = parser.parse_args()
    if arguments.threads < 2:
        parser.error("--threads must be at least 2: a share of one core says nothing.")
    measured = Neighbours(arguments.model, arguments.threads)
    measured.run(arguments.rounds)
    rows = measured.table()
    table = Table("condition", "work", "tok/s", "of alone", "of fair share", "rounds not quiet")
    for row in rows:
        table.add_row(
            row["condition"], row["kind"], f"{row['tokens_per_second']['median']:.1f}",
            f"{row['of_alone']:.2f}", f"{row.get('of_fair_share', 0):.2f}".replace("0.00", ""),
            str(row["rounds_not_quiet"] or ""),
        )  # fmt: skip
    Console(width=120).print(table)
    name = results.per_processor("neighbours")
    extra = {"model": arguments.model.name, "threads": arguments.threads}
    print(f"written: {results.write(name, rows, rounds=arguments.rounds, **extra).name}")


if __name__ == "__main__":
    main()
