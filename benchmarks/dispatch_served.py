"""Prefix hits of two engines over HTTP: one server that chooses, and clients that draw a server.

    scripts/bench dispatch_served

Each client asks questions on a document, one after the other, then begins with another one; an
engine can keep a tenth more documents than are its share. ``prefix``: ``--data-parallel-size 2``.
``random``: two servers with an engine each, of which one is drawn for each request.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from contextlib import ExitStack
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from benchmarks import results
from benchmarks.dispatch import BLOCK_SIZE, ROOM
from tools.serve_process import ServeProcess

NUM_CLIENTS, NUM_DOCUMENTS, NUM_QUESTIONS = 16, 3, 8
PREFIX_TOKENS, OWN_TOKENS, OUTPUT_TOKENS = 512, 48, 8
_DOCUMENT_BLOCKS = PREFIX_TOKENS // BLOCK_SIZE
_NUM_BLOCKS = int(NUM_CLIENTS // 2 * ROOM * (_DOCUMENT_BLOCKS + OWN_TOKENS // BLOCK_SIZE))
MODEL = (
    *("quire-tiny", "--threads", "1", "--memory", "600MiB"),
    *("--num-gpu-blocks-override", str(_NUM_BLOCKS)),
)
#: Servers of each case, by their flags.
CASES = {"prefix": [("--data-parallel-size", "2")], "random": [(), ()]}


async def ask(clients: list[httpx2.AsyncClient], number: int, round_number: int) -> list[float]:
    """Be one client; return the seconds of each request."""
    draw = random.Random(1000 * round_number + number)
    seconds = []
    for _ in range(NUM_DOCUMENTS):
        document = [draw.randrange(300, 2000) for _ in range(PREFIX_TOKENS)]
        for _ in range(NUM_QUESTIONS):
            question = [draw.randrange(300, 2000) for _ in range(OWN_TOKENS)]
            body = {"prompt": document + question, "max_tokens": OUTPUT_TOKENS, "temperature": 0}
            start = time.perf_counter()
            answer = await draw.choice(clients).post("/v1/completions", json=body)
            answer.raise_for_status()
            seconds.append(time.perf_counter() - start)
    return seconds


async def count(clients: list[httpx2.AsyncClient]) -> tuple[float, float]:
    """Return the tokens of prompts so far, and those of them that were cached."""
    found = {"local_compute": 0.0, "local_cache_hit": 0.0}
    for client in clients:
        text = (await client.get("/metrics")).text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == "quire:prompt_tokens_by_source_total":
                    source = sample.labels["source"]
                    found[source] = found.get(source, 0.0) + sample.value
    return sum(found.values()), found["local_cache_hit"]


async def measure(addresses: list[str], rounds: int) -> dict[str, Any]:
    """Serve the load some times; return the hit rates and the seconds of requests."""
    clients = [httpx2.AsyncClient(base_url=each, timeout=60) for each in addresses]
    hit_rates, medians = [], []
    for number in range(rounds):
        before = await count(clients)
        asked = [ask(clients, client, number) for client in range(NUM_CLIENTS)]
        seconds = sorted(one for each in await asyncio.gather(*asked) for one in each)
        total, hits = (b - a for a, b in zip(before, await count(clients), strict=True))
        hit_rates.append(hits / total)
        medians.append(seconds[len(seconds) // 2])
    for client in clients:
        await client.aclose()
    return {"hit_rate": results.summary(hit_rates), "request_seconds": results.summary(medians)}


def main() -> None:
    """Measure, show and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="dispatch_served")
    arguments = parser.parse_args()
    found = {}
    for case, servers in CASES.items():
        with ExitStack() as stack:
            started = [stack.enter_context(ServeProcess([*MODEL, *flags])) for flags in servers]
            addresses = [server.wait_ready() for server in started]
            found[case] = asyncio.run(measure(addresses, arguments.rounds))
        rate, seconds = found[case]["hit_rate"]["median"], found[case]["request_seconds"]["median"]
        print(f"{case}: {rate:.1%} of the prompts' tokens cached, a request {seconds * 1e3:.0f} ms")
    print(f"written: {results.write(arguments.name, found).name}")


if __name__ == "__main__":
    main()
