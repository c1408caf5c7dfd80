"""Whole phases of a model: its load, prompts, and decode by batch and depth, next to their limits.

A step's limit is the sum of its linears' and its attention's, each max(bytes / bandwidth,
operations / peak): one runs after the other. What is left is told apart by a stopwatch around every
native call.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import results
from benchmarks.engine_steps import prefill_seconds, start_decoding, stop_decoding
from benchmarks.kernels.roofline import peak_of
from benchmarks.limits.accounts import Costs
from benchmarks.peers.cases import Work
from benchmarks.stopwatch import Stopwatch
from quire import LLM
from quire.kernels.cpu.native import native

BATCH_DEPTH = 16
STEPS = 8
#: Native functions by the kind of work a step's time goes to; the others are ``other kernels``.
KINDS = {
    "PackedWeights.multiply": "linears",
    "Experts.run": "linears",
    "PagedAttention.run": "attention",
    "sample": "sampling",
    "token_logprobs": "sampling",
}


@dataclass(frozen=True)
class Phase:
    """A line of the table: ``batch`` sequences at ``depth``, or a prompt of ``tokens``."""

    name: str
    tokens: int = 0
    batch: int = 1
    depth: int = 1


@dataclass(frozen=True)
class Run:
    """One timed step or prompt.

    Attributes:
        costs: What the machine reached around it.
        parts: Seconds by kind of work.
        jobs: Of the thread pool.
    """

    costs: Costs
    seconds: float
    parts: Counter[str]
    jobs: int


def phases(quick: bool) -> list[Phase]:
    """Return the lines; ``quick`` leaves out what takes minutes on two cores."""
    found = [Phase("prefill 512", tokens=512), Phase("decode, batch 1")]
    found += [Phase(f"decode, batch {n}", batch=n, depth=BATCH_DEPTH) for n in (8, 32)]
    if not quick:
        found.insert(1, Phase("prefill 2048", tokens=2048))
        found += [Phase(f"decode at {depth}", depth=depth) for depth in (2048, 8192)]
    return found


def limits(work: Work, costs: Costs, dtype: str, phase: Phase) -> dict[str, tuple[float, str]]:
    """Return the least seconds of a step's linears and attention, and what binds each."""
    own = peak_of(dtype, costs.speed)
    # The cache has the type of the weights, float16 where they are quantized.
    attention = peak_of(dtype if dtype == "bfloat16" else "float16", costs.speed)
    if phase.tokens:
        matrices = 2 * (work.matrix_params * phase.tokens + work.head_params)
        kv, pairs = work.kv_bytes * phase.tokens, phase.tokens * (phase.tokens + 1) / 2
    else:
        matrices = 2 * (work.matrix_params + work.head_params) * phase.batch
        depth = phase.depth + STEPS // 2
        kv, pairs = work.kv_bytes * depth * phase.batch, float(depth * phase.batch)
    return {
        "linears": costs.limit(work.file_bytes, matrices, own),
        "attention": costs.limit(kv, work.attention_ops * pairs, attention),
    }


def totals(work: Work, phase: Phase) -> dict[str, float]:
    """Return bytes and operations of a step, and operations per byte at 2 bytes a weight."""
    tokens = phase.tokens or phase.batch
    if phase.tokens:
        read, operations = work.prefill(phase.tokens)
    else:
        read, operations = work.decode(phase.batch, phase.depth + STEPS // 2)
    in_bf16 = read + (2 * (work.matrix_params + work.head_params) - work.file_bytes) / tokens
    return {
        "bytes": read * tokens,
        "operations": operations * tokens,
        "flops_per_byte_in_bf16": round(operations / in_bf16, 3),
    }


class Phases:
    """One model, loaded and run under a stopwatch.

    Args:
        path: GGUF file.
        dtype: Of its weights, which decides the peak.
        watch: Installed already.
    """

    def __init__(self, path: Path, dtype: str, costs: Costs, watch: Stopwatch, quick: bool) -> None:
        self.path, self.dtype, self.costs, self.watch = path, dtype, costs, watch
        self.phases = phases(quick)
        self.work = Work.of(path)
        path.read_bytes()  # a load with a warm page cache
        longest = max(max(phase.depth, phase.tokens) for phase in self.phases)
        settings = {
            "threads": native.num_threads(),
            "max_model_len": longest + STEPS + 8,
            "max_num_seqs": 32,
            "kv_cache_memory_bytes": 1 << 30,
            "enable_prefix_caching": False,
        }

        def load() -> None:
            self.llm = LLM(str(path), **settings)
            prefill_seconds(self.llm, 1)

        self.loaded = self._timed(load)

    def load(self) -> dict[str, Any]:
        """Return the load to the first token; a file read once, packed weights written once."""
        moved = self.path.stat().st_size + self.work.file_bytes
        limit, bound = self.loaded.costs.limit(moved, 0, 1.0)
        packing, taken = self.loaded.parts["packing"], self.loaded.seconds
        parts = {"packing above limit": packing - limit, "rest": taken - packing}
        return {
            "phase": "load to the first token",
            "seconds": results.summary([taken]),
            "machine_gb_per_second": round(self.loaded.costs.bandwidth / 1e9, 2),
            "limit_seconds": limit,
            "of_limit": round(limit / taken, 3),
            "bound": bound,
            "left": {name: round(max(part, 0.0) / taken, 3) for name, part in parts.items()},
        }

    def run(self, phase: Phase) -> list[Run]:
        """Return a prompt's only run, or that of each of several steps that decode."""
        if phase.tokens:
            return [self._timed(lambda: prefill_seconds(self.llm, phase.tokens))]
        start_decoding(self.llm, phase.batch, phase.depth, STEPS)
        runs = [self._timed(self.llm.engine.step) for _ in range(STEPS)]
        stop_decoding(self.llm)
        return runs

    def _timed(self, work: Callable[[], object]) -> Run:
        def run() -> tuple[float, Counter[str], int]:
            before, jobs = Counter(self.watch.seconds), native.num_jobs()
            start = time.perf_counter()
            work()
            taken = time.perf_counter() - start
            return taken, self.watch.seconds - before, int(native.num_jobs() - jobs)

        costs, (taken, functions, jobs) = self.costs.around(run)
        parts: Counter[str] = Counter()
        for name, seconds in functions.items():
            other = "packing" if ".pack" in name else "other kernels"
            parts[KINDS.get(name, other)] += seconds
        parts["Python between kernels"] = taken - parts.total()
        return Run(costs, taken, parts, jobs)

    def measure(self, phase: Phase, rounds: int) -> dict[str, Any]:
        """Return a phase's time, the fraction of its limit, and what is left."""
        runs = [run for _ in range(rounds) for run in self.run(phase)]
        taken = median(run.seconds for run in runs)
        bandwidth = median(run.costs.bandwidth for run in runs)
        moved = totals(self.work, phase)
        peak = peak_of(self.dtype, self.costs.speed)
        shares = [self._shares(phase, run) for run in runs]
        names = dict.fromkeys(name for share in shares for name in share)
        left = {name: median(share.get(name, 0.0) for share in shares) for name in names}
        of_limit = left.pop("limit")
        found = limits(self.work, self.costs.at(bandwidth), self.dtype, phase)
        utilization = median(moved["bytes"] / run.seconds / run.costs.bandwidth for run in runs)
        jobs = int(median(run.jobs for run in runs))
        return {
            "phase": phase.name,
            "seconds": results.summary([run.seconds for run in runs]),
            "tokens_per_second": round((phase.tokens or phase.batch) / taken, 2),
            "machine_gb_per_second": round(bandwidth / 1e9, 2),
            "limit_seconds": of_limit * taken,
            "of_limit": round(of_limit, 3),
            "bound": max(found.values())[1],
            "bandwidth_utilization": round(utilization, 3),
            "flop_utilization": round(moved["operations"] / taken / peak, 4),
            **moved,
            "jobs": jobs,
            "left": {name: round(share, 3) for name, share in left.items()},
            "barriers": round(jobs * self.costs.barrier / taken, 3),
        }

    def _shares(self, phase: Phase, run: Run) -> dict[str, float]:
        """Return the limit and what is above it as shares of a run's time."""
        found = limits(self.work, run.costs, self.dtype, phase)
        seconds = {"limit": sum(least for least, _ in found.values())}
        for name, spent in run.parts.items():
            if name in found:
                seconds[f"{name} above limit"] = spent - found[name][0]
            else:
                seconds[name] = spent
        return {name: spent / run.seconds for name, spent in seconds.items()}

    def all(self, rounds: int) -> Iterator[dict[str, Any]]:
        """Yield the load and every phase."""
        yield self.load()
        decode_once = Phase("", depth=BATCH_DEPTH)
        self.run(decode_once)
        for phase in self.phases:
            yield self.measure(phase, 1 if phase.depth > 2048 else rounds)
        self.llm.shutdown()
