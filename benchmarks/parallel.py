"""One model on ranks of this machine against one process with as many threads, interleaved.

All engines are loaded at once, each in a process of its own (a process has one number of threads),
and asked in turn; an engine that is not asked sleeps.
``scripts/bench parallel`` writes benchmarks/results/parallel_PRESET_PROCESSOR.json.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.engine_steps import prompt
from quire import LLM, SamplingParams
from tools.random_checkpoint import PRESETS, random_checkpoint

#: Settings of the engines; the first one is what the others are compared with.
ENGINES: dict[str, dict[str, Any]] = {
    "1 process, 2 threads": {"threads": 2},
    "2 ranks, exact": {"threads": 1, "tensor_parallel_size": 2},
    "2 ranks, sums": {"threads": 1, "tensor_parallel_size": 2, "exact_tensor_parallel": False},
    "2 stages": {"threads": 1, "pipeline_parallel_size": 2},
    # A prompt in parts keeps both stages at work.
    "2 stages, parts of 128": {
        "threads": 1,
        "pipeline_parallel_size": 2,
        "max_num_batched_tokens": 128,
    },
}
#: Prompts, their tokens, and tokens of each answer.
LOADS = {"decode, 1 stream": (1, 4, 48), "decode, 8 streams": (8, 4, 32), "prompt": (1, 512, 1)}
NUM_BLOCKS = 512


def serve(connection: Connection, folder: str, settings: dict[str, Any]) -> None:
    """Answer loads with their seconds, and None with the engine's counters, until the end."""
    number = iter(range(1 << 30))
    with LLM(folder, num_gpu_blocks_override=NUM_BLOCKS, max_model_len=1024, **settings) as llm:
        connection.send(None)
        while (load := connection.recv()) != "end":
            if load is None:
                connection.send(llm.engine.stats())
                continue
            count, length, output = load
            params = SamplingParams(
                temperature=0, max_tokens=output, ignore_eos=True, detokenize=False
            )
            prompts = [prompt(length, next(number)) for _ in range(count)]
            start = time.perf_counter()
            llm.generate(prompts, params, False)
            connection.send(time.perf_counter() - start)


class Served:
    """An engine in a process of its own."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        arguments = (theirs, str(folder), settings)
        self._process = context.Process(target=serve, args=arguments)
        self._process.start()
        self._connection.recv()

    def ask(self, load: tuple[int, int, int] | None) -> Any:
        """Return what it answers."""
        self._connection.send(load)
        return self._connection.recv()

    def close(self) -> None:
        """End it."""
        self._connection.send("end")
        self._process.join()


def measure(folder: Path, repeats: int, quantization: str | None) -> dict[str, Any]:
    """Return by load and engine the seconds of it, and its speed relative to the first engine."""
    rows: dict[str, Any] = {}
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(
                closing(Served(folder, {"quantization": quantization, **settings}))
            )
            for name, settings in ENGINES.items()
        }
        for load, sizes in LOADS.items():
            seconds: dict[str, list[float]] = {name: [] for name in engines}
            for repeat in range(repeats + 1):
                for name, engine in engines.items():
                    taken = engine.ask(sizes)
                    if repeat:
                        seconds[name].append(taken)
            timed = {name: results.summary(taken) for name, taken in seconds.items()}
            base = timed[next(iter(ENGINES))]["median"]
            rows[load] = {n: {"speed": base / row["median"], **row} for n, row in timed.items()}
        rows["exchanged"] = {
            name: {k: v for k, v in engine.ask(None).items() if k.startswith("collective")}
            for name, engine in engines.items()
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", nargs="?", default="llama-3.2-1b", choices=sorted(PRESETS))
    parser.add_argument("--quantization", default="int4")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        random_checkpoint(Path(root), PRESETS[options.preset], dtype="bfloat16")
        rows = measure(Path(root), options.repeats, options.quantization)
    table = Table("load", *ENGINES)
    for load in LOADS:
        row = rows[load].values()
        table.add_row(load, *(f"{r['speed']:.3f} ({r['spread']:.2f})" for r in row))
    Console().print(table)
    path = results.write(
        results.per_processor(f"parallel_{options.preset}"), rows, quantization=options.quantization
    )
    print(f"written: {path.name}")


if __name__ == "__main__":
    main()
