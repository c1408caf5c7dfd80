"""How rates grow with batch, context, prompt and streams, as a picture.

    scripts/bench growth              # a shape of 135M parameters, made when it is not there
    scripts/bench growth MODEL.gguf
    scripts/bench growth --quick      # a minute; the picture goes to build/growth, no result file
    scripts/bench growth --show       # draw the picture again from the result file

Batch, context and prompt are engine steps in this process; streams are requests that are all sent
at once to ``quire serve``. Written to ``growth_<processor>.json`` and ``docs/images``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import results
from benchmarks.engine_steps import decode_seconds, prefill_seconds, start_decoding
from benchmarks.growth.plot import draw
from benchmarks.limits.accounts import Costs
from benchmarks.limits.phases import Phase, limits
from benchmarks.peers.burst import free_port, running
from benchmarks.peers.cases import Work
from benchmarks.peers.setup import ROOT
from quire import LLM
from quire.bench.bench_options import BenchOptions
from quire.bench.load_run import run_benchmark
from quire.kernels.cpu.native import native
from quire.system.machine import read_machine
from tools.random_checkpoint import PRESETS, random_checkpoint

HOME = ROOT / "build/growth"
BATCH_DEPTH, STEPS = 16, 8
#: Of each stream.
PROMPT, OUTPUT = 32, 32
#: SmolLM2-135M's sizes, with positions for the deepest context.
SHAPE = PRESETS["tiny-llama"] | {
    "vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "head_dim": 64, "intermediate_size": 1536,
    "max_position_embeddings": 40960, "tie_word_embeddings": True,
}  # fmt: skip
AXES = {
    "batch": [1, 2, 4, 8, 16, 32, 64, 128, 256],
    "context": [128, 512, 1024, 2048, 4096, 8192, 16384, 32768],
    "prompt": [128, 256, 512, 1024, 2048, 4096, 8192],
    "streams": [1, 4, 16, 64, 256, 1024],
}
QUICK = {"batch": 32, "context": 1024, "prompt": 1024, "streams": 64}


def make_model() -> Path:
    """Return a GGUF file of :data:`SHAPE` with random weights in Q8_0."""
    path = HOME / "smollm2-shape.q8_0.gguf"
    if not path.exists():
        HOME.mkdir(parents=True, exist_ok=True)
        random_checkpoint(HOME / "smollm2-shape", SHAPE)
        command = [sys.executable, "-m", "quire", "convert", "--type", "q8_0", "--force"]
        subprocess.run([*command, str(HOME / "smollm2-shape"), str(path)], check=True)
    return path


class Engine:
    """The engine's three axes; every point is measured once a round, in turn.

    Args:
        path: GGUF file of a quantized model.
    """

    def __init__(self, path: Path, threads: int, axes: dict[str, list[int]]) -> None:
        self.axes = axes
        longest = max(*axes["context"], *axes["prompt"]) + 2 * STEPS
        self.llm = LLM(
            str(path),
            threads=threads,
            max_model_len=longest,
            max_num_seqs=max(axes["batch"]),
            num_gpu_blocks_override=max(longest, max(axes["batch"]) * 48) // 16 + 2,
        )
        self.work, self.costs = Work.of(path), Costs.measured()

    def steps(self, batch: int, depth: int) -> float:
        """Return the mean seconds of a step that decodes ``batch`` sequences."""
        start_decoding(self.llm, batch, depth, STEPS)
        return sum(decode_seconds(self.llm, batch, STEPS)) / STEPS

    def prefill(self, tokens: int) -> float:
        """Return the seconds of a prompt of which nothing is cached."""
        self.llm.engine.reset_prefix_cache()
        return prefill_seconds(self.llm, tokens)

    def run(self, rounds: int) -> dict[str, list[dict[str, Any]]]:
        """Return a row for each point of an axis: seconds, tokens per second and the limit's."""
        self.steps(1, 1)
        points: dict[tuple[str, int], tuple[Phase, int, Callable[[], float]]] = {}
        for n in self.axes["batch"]:
            phase = Phase("", batch=n, depth=BATCH_DEPTH)
            points["batch", n] = phase, n, lambda n=n: self.steps(n, BATCH_DEPTH)
        for n in self.axes["prompt"]:
            points["prompt", n] = Phase("", tokens=n), n, lambda n=n: self.prefill(n)
        for n in self.axes["context"]:
            points["context", n] = Phase("", depth=n), 1, lambda n=n: self.steps(1, n)
        seconds: dict[tuple[str, int], list[float]] = {key: [] for key in points}
        least: dict[tuple[str, int], list[float]] = {key: [] for key in points}
        # Contexts come last in a round, each after those that it begins with: only what it adds is
        # computed.
        for _ in track(range(rounds), "rounds"):
            for key, (phase, _, measure) in points.items():
                here, taken = self.costs.around(measure)
                seconds[key].append(taken)
                parts = limits(self.work, here, "quantized", phase)
                least[key].append(sum(part for part, _ in parts.values()))
        found: dict[str, list[dict[str, Any]]] = {"batch": [], "context": [], "prompt": []}
        for (axis, value), (_, tokens, _) in points.items():
            taken = results.summary(seconds[axis, value])
            found[axis].append(
                {
                    axis: value,
                    "seconds": taken,
                    "tokens_per_second": round(tokens / taken["median"], 2),
                    "limit_tokens_per_second": round(tokens / median(least[axis, value]), 2),
                }
            )
        return found


def streams(path: Path, threads: int, counts: Sequence[int]) -> list[dict[str, Any]]:
    """Return a row for each number of streams that are sent at once over HTTP."""
    port = free_port()
    words = [
        *(sys.executable, "-m", "quire.cli.main", "serve", str(path), "--port", str(port)),
        *("--threads", str(threads), "--max-model-len", "512", "--disable-uvicorn-access-log"),
        *("--max-num-seqs", str(max(counts)), "--max-num-queued-reqs", str(2 * max(counts))),
        *("--kv-cache-memory-bytes", "4GiB"),
    ]
    rows = []
    with running(words, port):
        for count in counts:
            options = BenchOptions(
                port=port, num_prompts=count, input_len=PROMPT, output_len=OUTPUT, num_warmups=1,
                vocab_size=256, metric_percentiles="50,99",
            )  # fmt: skip
            metrics = asyncio.run(run_benchmark(options)).metrics
            row: dict[str, Any] = {
                "streams": count,
                "failed": metrics.failed,
                "tokens_per_second": round(metrics.output_throughput, 1),
            }
            for name in ("ttft", "itl"):
                percentiles = metrics.distributions[name].percentiles
                row |= {f"{name}_p{p:.0f}_ms": round(v, 2) for p, v in percentiles.items()}
            rows.append(row)
    return rows


def print_tables(found: dict[str, list[dict[str, Any]]]) -> None:
    """Print a table for each axis."""
    for rows in found.values():
        names = [name for name in rows[0] if name != "seconds"]
        table = Table(*(name.replace("_", " ") for name in names))
        for row in rows:
            table.add_row(*(f"{row[name]:,}" for name in names))
        Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path, help="GGUF file of a quantized model")
    parser.add_argument("--threads", type=int, default=read_machine().num_cores)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--show", action="store_true", help="measure nothing, draw the picture")
    arguments = parser.parse_args()
    name = results.per_processor("growth")
    if not arguments.show:
        axes = AXES
        if arguments.quick:
            axes = {axis: [v for v in values if v <= QUICK[axis]] for axis, values in AXES.items()}
        native.set_num_threads(arguments.threads)
        path = arguments.model or make_model()
        engine = Engine(path, arguments.threads, axes)
        found = engine.run(1 if arguments.quick else arguments.rounds)
        engine.llm.shutdown()
        del engine
        found["streams"] = streams(path, arguments.threads, axes["streams"])
        print_tables(found)
        if arguments.quick:
            document = {"model": path.stem, "machine": results.machine(), "results": found}
            print(f"picture: {draw(document, HOME / f'{name}.png')}")
            return
        results.write(name, found, model=path.stem, threads=arguments.threads)
    document = json.loads((results.RESULTS / f"{name}.json").read_text())
    print(f"picture: {draw(document, ROOT / 'docs/images' / f'{name}.png')}")


if __name__ == "__main__":
    main()
