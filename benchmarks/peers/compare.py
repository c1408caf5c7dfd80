"""Run Quire and llama.cpp in turn on the same GGUF file and print one table of ratios.

    scripts/bench compare llama-3.2-1b --type q4_0               # every case: about 4 minutes
    scripts/bench compare qwen3-0.6b --type q8_0 --case batch    # some
    scripts/bench compare llama-3.2-1b --show                    # print what was measured last

What is missing (llama.cpp, the model) is made first; see ``benchmarks/peers/setup.py``. Every round
runs each case once on both engines, back to back, in alternating order, while the other one sleeps.
A case during which others took part of the machine is run again, up to ``--retries`` times. Figures
are medians over the rounds; they are merged into a file of ``benchmarks/results`` for each kind of
processor, ``compare_<shape>_<processor>.json``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

from rich.progress import track

from benchmarks import processor, results
from benchmarks.peers.cases import BATCH_DEPTH, CASES, DEEP, GROUPS, Case, Work, rates
from benchmarks.peers.protocol import ROOT, Setup, Worker
from benchmarks.peers.quiet import Watch
from benchmarks.peers.setup import TYPES, Peers, create_parser, install, locate, make_model
from benchmarks.peers.table import print_tables
from quire.kernels.cpu.native import native

QUIRE, PEER = "quire", "llama.cpp"
STEPS = 32
#: Lines of a start on packed weights that lie on the disk.
CACHED = ", packed cache"
NEIGHBOUR = "while True: pass"
#: For one sequence, and for the peer's context of many.
WARM_UP = (
    {"kind": "decode", "batch": 1, "depth": 64, "steps": 4},
    {"kind": "decode", "batch": 2, "depth": 8, "steps": 2},
)
#: Per line of the table and engine, one value per round; and how many of them were not quiet.
Rates = dict[str, dict[str, list[float]]]


def start_worker(engine: str, peers: Peers, setup: Setup) -> Worker:
    """Start an engine's worker."""
    if engine == QUIRE:
        return Worker(sys.executable, ["-m", "benchmarks.peers.quire_worker"], setup)
    return Worker(str(peers.python), ["benchmarks/peers/llama_cpp_worker.py"], setup)


@contextmanager
def neighbour() -> Iterator[list[int]]:
    """A process that computes all the time; yields its id."""
    process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR])
    try:
        yield [process.pid]
    finally:
        process.kill()
        process.wait()


class Comparison:
    """Two workers, the watch over the machine, and what they measured."""

    def __init__(self, workers: dict[str, Worker], retries: int) -> None:
        self.workers, self.retries = workers, retries
        self.watch = Watch([worker.process.pid for worker in workers.values()])
        self.rates: Rates = {}
        self.noisy: dict[str, int] = {}

    def measure(self, case: Case, round_index: int) -> None:
        """Run a case on both engines, again while the machine is not quiet."""
        order = list(self.workers) if round_index % 2 else list(reversed(self.workers))
        for attempt in range(self.retries + 1):
            self.watch.begin()
            found: dict[str, dict[str, float]] = {}
            for engine in order:
                found[engine] = rates(case, self.workers[engine].ask(**case.command))
            verdict = self.watch.end()
            if verdict.is_quiet or attempt == self.retries:
                break
            print(
                f"{case.name}: others took {verdict.foreign:.0%} of the machine, canary "
                f"{verdict.canary:.2f}; again",
                file=sys.stderr,
            )
        for engine, values in found.items():
            for name, rate in values.items():
                self.rates.setdefault(name, {}).setdefault(engine, []).append(rate)
        if not verdict.is_quiet:
            for name in next(iter(found.values())):
                self.noisy[name] = self.noisy.get(name, 0) + 1

    def disturbed(self, case: Case, round_index: int) -> None:
        """Run a case while a neighbour computes."""
        with neighbour() as pids:
            own = self.watch
            self.watch = Watch([*own.pids, *pids], own.best)
            # The canary would measure the neighbour.
            retries, self.retries = self.retries, 0
            self.measure(case, round_index)
            self.watch, self.retries = own, retries
        self.noisy.pop(case.name, None)

    def run(self, cases: list[Case], rounds: int) -> None:
        """Measure ``rounds`` rounds after one that warms up."""
        for case in cases:
            if case.group != "deep":
                for worker in self.workers.values():
                    worker.ask(
                        **{**case.command, **({"steps": 2} if "steps" in case.command else {})}
                    )
        for round_index in track(range(rounds), "rounds"):
            for case in cases:
                if round_index % case.every == 0:
                    step = self.disturbed if case.is_disturbed else self.measure
                    step(case, round_index)


def peer_paths(peers: Peers, setup: Setup) -> str:
    """Return what the peer says of the instructions it was built for."""
    worker = start_worker(PEER, peers, setup)
    worker.close()
    return worker.paths


def measure_memory(peers: Peers, setup: Setup, rounds: int) -> dict[str, Any]:
    """Start each engine ``rounds`` times alone; return resident bytes and seconds.

    Quire is also started on weights that an earlier start has packed: lines of their own.
    """
    found: dict[str, dict[str, list[float]]] = {}
    with TemporaryDirectory() as folder:
        cached = replace(setup, packed_weights_cache=folder)
        start_worker(QUIRE, peers, cached).close()
        os.sync()
        starts = [(PEER, setup, ("", CACHED)), (QUIRE, setup, ("",)), (QUIRE, cached, (CACHED,))]
        for round_index in range(rounds):
            for engine, wanted, lines in starts[:: 1 if round_index % 2 else -1]:
                worker = start_worker(engine, peers, wanted)
                for name, value in worker.ready.items():
                    for line in lines:
                        found.setdefault(name + line, {}).setdefault(engine, []).append(value)
                worker.close()
    return {
        name: {
            "unit": "bytes" if name.startswith("rss") else "s",
            **{engine: results.summary(values) for engine, values in engines.items()},
            "ratio": results.summary(
                [a / b for a, b in zip(engines[QUIRE], engines[PEER], strict=True)]
            ),
        }
        for name, engines in found.items()
    }


def limits() -> dict[str, float]:
    """Measure what the machine can do: bytes read and operations a second."""
    return {
        "read_bytes_per_second": native.measure_read(),
        "int8_per_second": native.measure_int8(),
        "bfloat16_per_second": native.measure_dot(),
        "float32_per_second": native.measure_fma(),
    }


def compute_limit(type_name: str, found: dict[str, float]) -> tuple[str, float]:
    """Return the name and value of the rate that a weight type's arithmetic could reach."""
    names = ["bfloat16_per_second"] if type_name == "bf16" else ["int8_per_second"]
    name = next((n for n in names if found[n]), "float32_per_second")
    return name, found[name]


def describe(
    comparison: Comparison, cases: list[Case], work: Work, type_name: str, limit: dict[str, float]
) -> dict[str, Any]:
    """Return the entries of the result file."""
    kind, peak = compute_limit(type_name, limit)
    found: dict[str, Any] = {}
    for case in cases:
        for name in rates(case, _like(case)):
            engines = comparison.rates[name]
            read, operations = work.per_token(name, case)
            pairs = zip(engines[QUIRE], engines[PEER], strict=True)
            entry: dict[str, Any] = {
                "unit": "tokens/s",
                **{engine: results.summary(values) for engine, values in engines.items()},
                "ratio": results.summary([a / b for a, b in pairs]),
                "compute_of": kind.removesuffix("_per_second"),
                "rounds_not_quiet": comparison.noisy.get(name, 0),
            }
            for engine, values in engines.items():
                rate = statistics.median(values)
                entry[engine]["of_read"] = rate * read / limit["read_bytes_per_second"]
                entry[engine]["of_compute"] = rate * operations / peak
            found[name] = entry
    return found


def _like(case: Case) -> Any:
    """Return an answer of the right form, to learn which lines a case gives."""
    return 1.0 if case.command["kind"] == "prefill" else {"prefill": 1.0, "steps": [1.0]}


def compare(arguments: argparse.Namespace, type_name: str) -> dict[str, Any]:
    """Measure one weight type of the shape and return the result file's entries."""
    peers = locate(arguments)
    install(peers)
    path = make_model(peers, arguments.shape, type_name)
    groups = arguments.case or GROUPS
    native.set_num_threads(arguments.threads)
    limit = limits()
    cases = [case for case in CASES if case.group in groups]
    found: dict[str, Any] = {}
    if "memory" in groups:
        path.read_bytes()  # from the page cache for both
        setup = Setup(str(path), arguments.threads, 4096)
        found |= measure_memory(peers, setup, arguments.rounds)
    if cases:
        many = max([case.command.get("batch", 1) for case in cases])
        single = DEEP + STEPS if any(case.group == "deep" for case in cases) else 512 + STEPS
        room = BATCH_DEPTH + STEPS if many > 1 else 0
        setup = Setup(str(path), arguments.threads, single, many, room)
        workers = {engine: start_worker(engine, peers, setup) for engine in (QUIRE, PEER)}
        comparison = Comparison(workers, arguments.retries)
        try:
            comparison.run(cases, arguments.rounds)
        finally:
            for worker in workers.values():
                worker.close()
        found |= describe(comparison, cases, Work.of(path), type_name, limit)
    run = {
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "limits": limit,
        "peer_paths": peer_paths(peers, Setup(str(path), arguments.threads, 512)),
    }
    name = results.per_processor(f"compare_{arguments.shape}")
    results.merge(name, {type_name: found}, shape=arguments.shape, run=run)
    return found


def main() -> None:
    parser = create_parser(__doc__, "all")
    parser.add_argument("--case", action="append", choices=GROUPS, help="default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--retries", type=int, default=1, help="of a case that was not quiet")
    parser.add_argument("--show", action="store_true", help="measure nothing, print the file")
    parser.add_argument("--processor", default=processor.kind(), help="of --show: this one's")
    arguments = parser.parse_args()
    types = arguments.type or list(TYPES)
    if not arguments.show:
        for type_name in types:
            compare(arguments, type_name)
    path = results.RESULTS / f"compare_{arguments.shape}_{arguments.processor}.json"
    print_tables(path, types)
    print(f"from {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
