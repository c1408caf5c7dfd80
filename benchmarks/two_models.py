"""How two busy models of one server divide the cores: each alone, and both at once.

One server has four models of one shape, with weights 4, 4, 2 and 1, so that pairs stand 1:1, 2:1
and 4:1 without a restart. Each has clients of its own, who ask without a pause: for long answers
(decode) or with long prompts (prefill). All cases take turns, round after round. Stated are what
each model gets of what it gets alone, next to its share by weight, its part of the sum and of the
CPU time, and the sum. What a heavy model leaves in its pauses goes to the other, whose part is
larger then than its weight's, though neither gets less than its share.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import results
from tools.random_checkpoint import PRESETS, random_checkpoint
from tools.serve_process import ServeProcess

WEIGHTS = {"4a": 4, "4b": 4, "2": 2, "1": 1}
PAIRS = (("4a", "4b"), ("4a", "2"), ("4a", "1"))
#: Clients of a model, characters of a prompt (as many tokens), tokens of an answer.
LOADS = {"decode": (4, 4, 1000), "prefill": (2, 1200, 1)}
#: Small steps, so that the slowest model ends several of them while it is watched.
FLAGS = ("--max-model-len", "2048", "--max-num-seqs", "4", "--max-num-batched-tokens", "32")
#: Till the steps of those who left are over, and the prompts of those who decode.
SETTLE_SECONDS = 2.0
POLL_SECONDS = 0.1
TOKENS, CPU_SECONDS = "quire:iteration_tokens_total_sum", "quire:process_cpu_seconds_total"
#: Of each model that is watched, whatever it takes.
LEAST_STEPS = 3
#: How far a part may be from the weights', and the least sum.
TOLERANCE, LEAST_SUM = 0.1, 0.9


class Case(NamedTuple):
    """Two models, each with its load."""

    models: tuple[str, str]
    loads: tuple[str, str]

    @property
    def name(self) -> str:
        """Such as "prefill 2:1"."""
        first, second = (WEIGHTS[model] for model in self.models)
        what = self.loads[0] if self.loads[0] == self.loads[1] else " and ".join(self.loads)
        return f"{what} {first / second:g}:1"


class Rate(NamedTuple):
    """What an engine did: tokens of its steps, and CPU seconds, each per second."""

    tokens: float
    cpu: float


CASES = [
    *(Case(pair, (load, load)) for load in LOADS for pair in PAIRS),
    Case(PAIRS[0], ("prefill", "decode")),
]


@dataclass(frozen=True)
class Server:
    """The server under load.

    Attributes:
        client: Of its address.
        preset: The models' names are this and a key of :data:`WEIGHTS`.
        seconds: To watch it.
        numbers: For prompts, so that no two are alike.
    """

    client: httpx2.AsyncClient
    preset: str
    seconds: float
    numbers: Iterator[int]

    async def _ask(self, model: str, load: str) -> None:
        """Ask without a pause."""
        _, num_characters, max_tokens = LOADS[load]
        body = {"model": f"{self.preset}-{model}", "max_tokens": max_tokens, "ignore_eos": True}
        words = ("The quick brown fox jumps over the lazy dog. " * 100)[:num_characters]
        while True:
            prompt = f"{next(self.numbers)} {words}"
            asked = {**body, "prompt": prompt, "stream": True}
            async with self.client.stream("POST", "/v1/completions", json=asked) as answer:
                answer.raise_for_status()
                async for _ in answer.aiter_lines():
                    pass

    @asynccontextmanager
    async def asking(self, model: str, load: str) -> AsyncIterator[None]:
        """Have a model's clients ask inside the block; they leave in the middle of an answer."""
        clients = [asyncio.create_task(self._ask(model, load)) for _ in range(LOADS[load][0])]
        try:
            yield
        finally:
            for client in clients:
                client.cancel()
            ends = await asyncio.gather(*clients, return_exceptions=True)
        for end in ends:
            if not isinstance(end, asyncio.CancelledError):
                raise RuntimeError(f"a client of {model} has ended: {end!r}")

    async def _counters(self) -> dict[str, tuple[float, float]]:
        """Return the tokens of each engine's steps and its CPU seconds so far, by model."""
        text = (await self.client.get("/metrics")).text
        found = {
            (sample.name, sample.labels["model_name"]): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == TOKENS or sample.labels.get("process") == "engine"
        }
        names = {model: f"{self.preset}-{model}" for model in WEIGHTS}
        return {
            model: (found[TOKENS, name], found[CPU_SECONDS, name]) for model, name in names.items()
        }

    async def rates(self, models: Sequence[str]) -> list[Rate]:
        """Return what busy models do from now on, between the ends of two of their steps."""
        await asyncio.sleep(SETTLE_SECONDS)
        seen: dict[str, list[tuple[float, float, float]]] = {model: [] for model in models}
        end = time.perf_counter() + self.seconds
        while (now := time.perf_counter()) < end or min(map(len, seen.values())) <= LEAST_STEPS + 1:
            found = await self._counters()
            for model, points in seen.items():
                if not points or found[model][0] != points[-1][1]:
                    points.append((now, *found[model]))
            await asyncio.sleep(POLL_SECONDS)
        return [_rate(points) for points in seen.values()]

    async def measure(self, models: Sequence[str], loads: Sequence[str]) -> list[Rate]:
        """Return the rates of models that are under load at the same time."""
        async with AsyncExitStack() as stack:
            for model, load in zip(models, loads, strict=True):
                await stack.enter_async_context(self.asking(model, load))
            return await self.rates(models)


def _rate(points: Sequence[tuple[float, float, float]]) -> Rate:
    """Return the rate from the end of the first step that was seen to that of the last."""
    seconds, tokens, cpu = (b - a for a, b in zip(points[1], points[-1], strict=True))
    return Rate(tokens / seconds, cpu / seconds)


async def measure_round(server: Server) -> list[dict[str, Any]]:
    """Return what each of :data:`CASES` came to."""
    alone: dict[tuple[str, str], Rate] = {}
    found = []
    for case in CASES:
        for one in zip(case.models, case.loads, strict=True):
            if one not in alone:
                (alone[one],) = await server.measure(*([word] for word in one))
        both = await server.measure(case.models, case.loads)
        own = [alone[one] for one in zip(case.models, case.loads, strict=True)]
        of_alone = [now.tokens / before.tokens for now, before in zip(both, own, strict=True)]
        weights = [WEIGHTS[model] for model in case.models]
        expected = [weight / sum(weights) for weight in weights]
        found.append(
            {
                "tokens_per_second_alone": [rate.tokens for rate in own],
                "tokens_per_second_both": [rate.tokens for rate in both],
                "of_alone": of_alone,
                "of_share": [one / share for one, share in zip(of_alone, expected, strict=True)],
                "part": of_alone[0] / sum(of_alone),
                "cpu_part": both[0].cpu / (both[0].cpu + both[1].cpu),
                "cores_used": both[0].cpu + both[1].cpu,
                "ratio_by_weights": of_alone[0] / of_alone[1] * weights[1] / weights[0],
                "sum": sum(of_alone),
            }
        )
    return found


def summaries(rounds: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Return a record for each case: medians and spread over the rounds, and what was expected."""
    found = {}
    for case, measured in zip(CASES, zip(*rounds, strict=True), strict=True):
        weights = [WEIGHTS[model] for model in case.models]
        record: dict[str, Any] = {"models": case.models, "loads": case.loads, "weights": weights}
        record["expected_part"] = weights[0] / sum(weights)
        for key, value in measured[0].items():
            values = [one[key] for one in measured]
            if isinstance(value, list):
                record[key] = [results.summary([*column]) for column in zip(*values, strict=True)]
            else:
                record[key] = results.summary(values)
        off = abs(record["ratio_by_weights"]["median"] - 1)
        record["as_expected"] = off <= TOLERANCE and record["sum"]["median"] >= LEAST_SUM
        found[case.name] = record
    return found


def print_table(found: dict[str, Any]) -> None:
    """Print a line for each case."""
    columns = ["case", "alone, tok/s", "both, tok/s", "part of first", "of CPU time", "by weight"]
    table = Table(*columns, "of its share", "ratio by weights'", "sum", "as expected")
    for name, record in found.items():
        rates = (
            ", ".join(f"{one['median']:.1f}" for one in record[f"tokens_per_second_{key}"])
            for key in ("alone", "both")
        )
        parts = (f"{record[key]['median']:.3f}" for key in ("part", "cpu_part"))
        shares = ", ".join(f"{one['median']:.2f}" for one in record["of_share"])
        ranges = (
            "{median:.2f}\n{min:.2f} to {max:.2f}".format(**record[key])
            for key in ("ratio_by_weights", "sum")
        )
        met = "yes" if record["as_expected"] else "no"
        expected = f"{record['expected_part']:.3f}"
        table.add_row(name, *rates, *parts, expected, shares, *ranges, met)
    Console(width=150).print(table)


async def run(url: str, options: argparse.Namespace) -> list[list[dict[str, Any]]]:
    """Return what each case came to, round after round."""
    async with httpx2.AsyncClient(base_url=url, timeout=600) as client:
        server = Server(client, options.model, options.seconds, itertools.count())
        rounds = track(range(options.rounds), "rounds")
        return [await measure_round(server) for _ in rounds]


def main() -> None:
    """Measure and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen3-0.6b", choices=list(PRESETS))
    parser.add_argument("--seconds", type=float, default=5, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=int, default=cores, help="of each model")
    parser.add_argument("--name", default="two_models", help="of the result file; empty for none")
    parser.add_argument("flags", nargs="*", help="of quire serve, after --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        flags = [*FLAGS, "--threads", str(options.threads)]
        files = Path(folder) / "files"
        random_checkpoint(files, PRESETS[options.model], seed=0, dtype="bfloat16")
        paths = [str(Path(folder) / f"{options.model}-{key}") for key in WEIGHTS]
        for path, weight in zip(paths, WEIGHTS.values(), strict=True):
            shutil.copytree(files, path, copy_function=os.link)  # each is loaded of its own
            flags += ["--core-weight", f"{Path(path).name}={weight}"]
        with ServeProcess([*paths, *flags, *options.flags]) as server:
            rounds = asyncio.run(run(server.wait_ready(), options))
            server.end()
    found = summaries(rounds)
    print_table(found)
    if options.name:
        settings = {key: value for key, value in vars(options).items() if key != "name"}
        settings["serve"] = FLAGS
        measured = [dict(zip(found, cases, strict=True)) for cases in rounds]
        results.write(options.name, found, settings=settings, rounds=measured)


if __name__ == "__main__":
    main()
