"""What a layer of experts costs more where engines share them: decode steps of one and of two.

    python -m benchmarks.shared_experts

A model of 24 layers that compute next to nothing, so that the difference of a step is what goes
between engines. One engine and two that share experts take turns with the same request, alone; all
have one thread.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import results
from quire.core.config import EngineConfig
from quire.core.loading import Loading
from quire.core.machine import read_machine
from quire.core.request import EngineRequest
from quire.core.sampling_params import SamplingParams
from quire.llm.engine_client import EngineClient
from quire.llm.process.proxy import EngineProxy
from quire.llm.replicas.loading import load_replicas
from tools.random_checkpoint import PRESETS, random_checkpoint

LAYERS = 24
PARAMS = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
PROMPT = list(range(8))


def load(folder: Path, count: int) -> EngineClient:
    """Start engines that share experts, or one that has all."""
    config = EngineConfig.from_keywords(
        model=str(folder),
        memory=count << 28,
        max_num_seqs=4,
        threads=1,
        data_parallel_size=count,
        enable_expert_parallel=True,
    )
    if count == 1:
        return EngineProxy(config)
    return load_replicas(
        config, read_machine(), Loading(), lambda number, own, loading: EngineProxy(own)
    )


async def token_seconds(engine: EngineClient, name: str) -> float:
    """Return the seconds of a token of one request, the first one left out."""
    times = []
    async for output in engine.generate(EngineRequest(name, PROMPT, PARAMS)):
        times.append((time.perf_counter(), len(output.outputs[0].token_ids)))
    (start, first), (end, last) = times[0], times[-1]
    return (end - start) / (last - first)


async def measure(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Return seconds of a step, round after round."""
    engines = {"1 engine": load(folder, 1), "2 engines": load(folder, 2)}
    found: dict[str, list[float]] = {name: [] for name in engines}
    numbers = itertools.count()
    for index in range(rounds + 2):
        for name, engine in engines.items():
            seconds = await token_seconds(engine, f"r{next(numbers)}")
            if index >= 2:
                found[name].append(seconds)
    for engine in engines.values():
        await engine.shutdown()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--no-result", action="store_true", help="write no result file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        random_checkpoint(Path(folder), PRESETS["tiny-mixtral"] | {"num_hidden_layers": LAYERS})
        found = asyncio.run(measure(Path(folder), options.rounds))
    pairs = zip(*found.values(), strict=True)
    extra = results.summary([(two - one) / LAYERS for one, two in pairs])
    cases: list[dict[str, Any]] = [
        {"case": name, "seconds": results.summary(seconds)} for name, seconds in found.items()
    ]
    console = Console()
    for case in cases:
        console.print(f"{case['case']}: {1e6 * case['seconds']['median']:.0f} µs a step")
    console.print(f"more in each of {LAYERS} layers: {1e6 * extra['median']:.0f} µs")
    if not options.no_result:
        name = results.per_processor("shared_experts")
        path = results.write(name, cases, layers=LAYERS, extra_of_a_layer=extra)
        console.print(f"written: {path.name}")


if __name__ == "__main__":
    main()
