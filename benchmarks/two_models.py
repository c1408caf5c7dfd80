"""How two models of one server share the cores: tokens of each alone, and of both at once.

Each model has its own clients, who ask without a pause; what is counted are the engines' own
counters. Alone and both follow each other round after round. Stated are what each model gets of
what it gets alone, its part of the sum, and the sum.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from benchmarks import results
from tools.random_checkpoint import PRESETS, random_checkpoint
from tools.serve_process import ServeProcess

#: Till the prompts are done: what is measured is decoding.
SETTLE_SECONDS = 4.0


class Clients:
    """Ask one model without a pause.

    Args:
        url: Of the server.
        model: To ask.
        number: Of clients.
        prompt: What they send, each with a number of its own before it.
        max_tokens: Of an answer.
    """

    def __init__(self, url: str, model: str, number: int, prompt: str, max_tokens: int) -> None:
        self._url = url
        self._body = {"model": model, "max_tokens": max_tokens, "ignore_eos": True, "seed": 1}
        self._number = number
        self._prompt = prompt
        self._asked = 0

    def _ask(self, client: httpx2.Client, ended: threading.Event) -> None:
        """Send one request, and leave in its middle when the time is over."""
        self._asked += 1
        body = {**self._body, "prompt": f"{self._asked} {self._prompt}", "stream": True}
        with client.stream("POST", f"{self._url}/v1/completions", json=body) as answer:
            answer.raise_for_status()
            for _ in answer.iter_lines():
                if ended.is_set():
                    return

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Have them ask inside the block."""
        ended = threading.Event()

        def run() -> None:
            with httpx2.Client(timeout=600) as client:
                while not ended.is_set():
                    self._ask(client, ended)

        with ThreadPoolExecutor(self._number) as pool:
            asking = [pool.submit(run) for _ in range(self._number)]
            try:
                yield
            finally:
                ended.set()
        for one in asking:
            one.result()


def tokens(url: str) -> dict[str, float]:
    """Return how many tokens each model has made so far."""
    text = httpx2.get(f"{url}/metrics").text
    return {
        sample.labels["model_name"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.endswith(":generation_tokens_total")
    }


def rates(url: str, seconds: float) -> dict[str, float]:
    """Return tokens per second of each model from now on."""
    time.sleep(SETTLE_SECONDS)
    before, start = tokens(url), time.perf_counter()
    time.sleep(seconds)
    after, elapsed = tokens(url), time.perf_counter() - start
    return {name: (after[name] - before[name]) / elapsed for name in after}


def measure(url: str, clients: dict[str, Clients], seconds: float, rounds: int) -> list[Any]:
    """Return per round the rates of each model alone and of both."""
    first, second = clients
    found = []
    for _ in range(rounds):
        with clients[first].asking():
            alone_first = rates(url, seconds)[first]
        with clients[first].asking(), clients[second].asking():
            both = rates(url, seconds)
        with clients[second].asking():
            alone_second = rates(url, seconds)[second]
        parts = {first: both[first] / alone_first, second: both[second] / alone_second}
        found.append(
            {
                "tokens_per_second_alone": {first: alone_first, second: alone_second},
                "tokens_per_second_both": both,
                "of_alone": parts,
                "part": {name: part / sum(parts.values()) for name, part in parts.items()},
                "sum": sum(parts.values()),
            }
        )
    return found


def medians(found: Sequence[Any]) -> dict[str, Any]:
    """Return the median of each number over the rounds, and the range of the sum."""
    first = found[0]
    out: dict[str, Any] = {
        key: {name: statistics.median(one[key][name] for one in found) for name in first[key]}
        for key in first
        if key != "sum"
    }
    sums = [one["sum"] for one in found]
    return out | {"sum": statistics.median(sums), "sum_range": [min(sums), max(sums)]}


def main() -> None:
    """Measure and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs=2, default=["llama-3.2-1b", "llama-3.2-1b"])
    parser.add_argument("--clients", type=int, nargs=2, default=[4, 4])
    parser.add_argument("--prompt-characters", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=4)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=int, default=cores, help="of each model")
    parser.add_argument("--name", default="two_models", help="of the result file; empty for none")
    parser.add_argument("flags", nargs="*", help="of quire serve, after --")
    options = parser.parse_args()
    prompt = ("The quick brown fox jumps over the lazy dog. " * 1000)[: options.prompt_characters]
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for seed, preset in enumerate(options.models):
            path = Path(folder) / f"{preset}-{'ab'[seed]}"
            random_checkpoint(path, PRESETS[preset], seed=seed, dtype="bfloat16")
            paths.append(str(path))
        threads = ["--threads", str(options.threads)]
        with ServeProcess([*paths, *threads, *options.flags]) as server:
            url = server.wait_ready()
            clients = {
                Path(path).name: Clients(url, Path(path).name, number, prompt, options.max_tokens)
                for path, number in zip(paths, options.clients, strict=True)
            }
            found = measure(url, clients, options.seconds, options.rounds)
            server.end()
    result = medians(found)
    table = Table("model", "alone tok/s", "both tok/s", "of alone", "part of the sum")
    for name in clients:
        table.add_row(
            name,
            *(f"{result[f'tokens_per_second_{key}'][name]:.1f}" for key in ("alone", "both")),
            f"{result['of_alone'][name]:.2f}",
            f"{result['part'][name]:.2f}",
        )
    low, high = result["sum_range"]
    Console().print(table, f"sum {result['sum']:.2f} of one alone ({low:.2f} to {high:.2f})")
    if options.name:
        settings = {key: value for key, value in vars(options).items() if key != "name"}
        results.write(options.name, result, settings=settings, rounds=found)


if __name__ == "__main__":
    main()
