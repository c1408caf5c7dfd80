"""What the scheduler costs a step by how many requests run and wait; no model.

    scripts/bench scheduler_cost

The engine's own scheduler and block manager, with an executor that draws a token for each sequence
at once. ``decoding``: all requests run, none waits. ``queue``: 64 run, as many as may, and the
others wait; ``clients``: each of those is another client's. ``burst``: all come at once and
are served to their ends. Stated is CPU time of the engine's thread, per step and per token; the
executor's is not counted.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import results
from quire.core.client import Client
from quire.core.engine_request import EngineRequest
from quire.core.metrics import Samples
from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.core.model.model_config import ModelConfig
from quire.core.sampling_params import SamplingParams
from quire.core.step import SchedulerOutput, SequenceResult, StepOutput
from quire.engine.engine import Engine
from quire.settings.config import EngineConfig

NUM_PROMPT_TOKENS, NUM_OUTPUT_TOKENS = 32, 64
#: Of the cases in which some wait.
NUM_RUNNING = 64
SPEC = KVCacheSpec(num_layers=1, num_kv_heads=1, head_dim=1, block_size=16, dtype="float32")
MODEL = ModelConfig(
    architecture="None",
    vocab_size=1000,
    hidden_size=1,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=1,
    intermediate_size=1,
    max_position_embeddings=4096,
)


@dataclass(slots=True)
class Drawn:
    """A step that took no time."""

    output: StepOutput

    def result(self) -> StepOutput:
        return self.output


class DrawingExecutor:
    """Draws token 1 for every sequence; counts the CPU time that it takes itself."""

    kv_cache_spec = SPEC
    adapters = pictures = tiers = outgoing = failure = None
    depth = 1

    def check(self) -> None:
        pass

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.seconds = 0.0

    def submit(self, plan: SchedulerOutput, request_arrived: Callable[[], bool]) -> Drawn:
        start = time.thread_time()
        output = StepOutput(
            {r.request_id: SequenceResult([1]) for r in plan.scheduled if r.samples}
        )
        self.seconds += time.thread_time() - start
        return Drawn(output)

    def unready(self) -> frozenset[str]:
        return frozenset()

    def wait_until_ready(self, seconds: float) -> None:
        raise AssertionError("no request is unready")

    def stats(self) -> Samples:
        return {}

    def shutdown(self) -> None:
        pass


class Load:
    """An engine with requests.

    Args:
        most_running: Requests.
        num_requests: That it is to hold.
    """

    def __init__(self, most_running: int, num_requests: int, mixed_prefill_tokens: int) -> None:
        blocks = 2 + num_requests * -(-(NUM_PROMPT_TOKENS + NUM_OUTPUT_TOKENS + 16) // 16)
        self.executor = DrawingExecutor(blocks)
        config = EngineConfig.from_keywords(
            max_num_seqs=most_running,
            max_num_batched_tokens=max(2048, 2 * most_running),
            mixed_prefill_tokens=mixed_prefill_tokens,
        )
        self.engine = Engine(self.executor, config, MODEL)

    def add(self, number: int, num_output_tokens: int, client: Client | None = None) -> None:
        """Queue a request whose prompt no other request has."""
        prompt = [(7 * i + number) % 1000 for i in range(NUM_PROMPT_TOKENS - 2)]
        params = SamplingParams(temperature=0, max_tokens=num_output_tokens, ignore_eos=True)
        prompt = [number % 1000, number // 1000, *prompt]
        of_client = {} if client is None else {"client": client}
        self.engine.add_request(EngineRequest(f"request-{number:05}", prompt, params, **of_client))

    def step(self) -> tuple[float, int]:
        """Return the CPU seconds of a step without the executor's, and its output tokens."""
        own = self.executor.seconds
        start = time.thread_time()
        outputs = self.engine.step()
        seconds = time.thread_time() - start - (self.executor.seconds - own)
        return seconds, sum(len(output.result.token_ids) for output in outputs)


def decoding(number: int, steps: int) -> list[float]:
    """Return the seconds of steps in which ``number`` requests decode and none waits."""
    load = Load(number, number, 0)
    for i in range(number):
        load.add(i, steps + 4)
    while load.step()[1] < number:
        pass
    return [load.step()[0] for _ in range(steps)]


def queue(number: int, steps: int, *, clients: bool) -> list[float]:
    """Return the seconds of steps of :data:`NUM_RUNNING` decodes while ``number`` others wait."""
    load = Load(NUM_RUNNING, NUM_RUNNING, 0)
    for i in range(NUM_RUNNING):
        load.add(i, steps + 8)
    while load.step()[1] < NUM_RUNNING:
        pass
    for i in range(number):
        load.add(NUM_RUNNING + i, 8, Client(f"client-{i}") if clients else None)
    load.step()
    return [load.step()[0] for _ in range(steps)]


def burst(number: int) -> dict[str, float]:
    """Return what ``number`` requests at once cost to add and, per output token, to serve."""
    load = Load(number, number, 112)
    start = time.thread_time()
    for i in range(number):
        load.add(i, NUM_OUTPUT_TOKENS)
    added = time.thread_time() - start
    total, tokens, most = 0.0, 0, 0
    while load.engine.has_unfinished_requests():
        seconds, count = load.step()
        most = max(most, len(load.engine.scheduler.running))
        total, tokens = total + seconds, tokens + count
    return {
        "add_seconds_per_request": added / number,
        "seconds_per_token": total / tokens,
        "most_running": most,
    }


def measure(sizes: list[int], steps: int) -> list[dict[str, Any]]:
    """Return a row of each size."""
    rows = []
    for number in sizes:
        gc.collect()
        row: dict[str, Any] = {"requests": number}
        row["decoding"] = results.summary(decoding(number, steps))
        row["queue"] = results.summary(queue(number, steps, clients=False))
        row["clients"] = results.summary(queue(number, steps, clients=True))
        row["burst"] = burst(number)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256, 1024, 2048, 4096])
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--no-result", action="store_true", help="write no result file")
    arguments = parser.parse_args()
    rows = measure(arguments.sizes, arguments.steps)
    table = Table(
        "requests", "decoding µs/token", "queue µs/step", "clients µs/step", "burst µs/token",
        "burst µs/add", "most running",
    )  # fmt: skip
    for row in rows:
        found = row["burst"]
        table.add_row(
            str(row["requests"]),
            f"{row['decoding']['median'] / row['requests'] * 1e6:.2f}",
            f"{row['queue']['median'] * 1e6:.0f}",
            f"{row['clients']['median'] * 1e6:.0f}",
            f"{found['seconds_per_token'] * 1e6:.2f}",
            f"{found['add_seconds_per_request'] * 1e6:.1f}",
            f"{found['most_running']:.0f}",
        )
    Console().print(table)
    if not arguments.no_result:
        print(f"written: {results.write('scheduler_cost', rows).name}")


if __name__ == "__main__":
    main()
