"""``scripts/soak``: a server at saturation for an hour; memory, latency and errors over time.

Clients ask for chats, completions and structured output, streamed and whole; some leave in the
midst. Others are hostile: malformed requests, halves of requests, texts far too long, grammars that
no client sent before. Memory is the resident set of both processes; its slope is a least-squares
line after the warm-up, ten minutes in which caches fill and the C library's heap takes its shape.
Its bound is an hour's: memory goes up and down by a megabyte or two, with the grammars that are
kept, which a quarter of an hour cannot tell from growth. Latency is the gap between two tokens as
clients see it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.robustness import hostile, server_state
from benchmarks.robustness.random_clients import make_questions
from tools.serve_process import ServeProcess

SERVER = ("--memory", "256MiB", "--max-num-seqs", "8", "--threads", "1")
SAMPLE_SECONDS = 1.0
MAX_SLOPE_MIB_A_MINUTE = 0.05
MAX_ITL_RATIO = 1.2
LEAVING = 0.1  # of the clients leave before the end


@dataclass
class Measured:
    """What was seen.

    Attributes:
        memory: ``(seconds, MiB of the server, MiB of the engine)``.
        gaps: ``(seconds, gap in seconds)`` between two tokens of a stream.
        statuses: Of answers.
        hostile: Requests of each hostile kind.
        errors: As text.
    """

    memory: list[tuple[float, float, float]] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    hostile: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    num_left: int = 0
    num_tokens: int = 0


async def ask(
    client: httpx2.AsyncClient, rnd: random.Random, body: dict[str, Any], path: str, seen: Measured
) -> None:
    streamed = rnd.random() < 0.7
    leave_after = rnd.randrange(1, 30) if rnd.random() < LEAVING else None
    async with client.stream("POST", path, json=body | {"stream": streamed}) as response:
        seen.statuses[str(response.status_code)] += 1
        if response.status_code != 200:
            seen.errors.append((await response.aread()).decode()[:300])
            return
        if not streamed:
            answer = json.loads(await response.aread())
            seen.num_tokens += answer["usage"]["completion_tokens"]
            return
        last, count = None, 0
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            if line.startswith('data: {"error"'):
                seen.errors.append(line[:300])
            now = time.perf_counter()
            if last is not None and body["n"] == 1:
                seen.gaps.append((now, now - last))
            last, count = now, count + 1
            seen.num_tokens += 1
            if count == leave_after:
                seen.num_left += 1
                return


async def _load(url: str, seconds: float, concurrency: int, seen: Measured) -> None:
    rnd = random.Random(0)
    questions = make_questions(rnd, 200)
    end = time.perf_counter() + seconds
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=concurrency)
    async with httpx2.AsyncClient(base_url=url, timeout=600, limits=limits) as client:

        async def client_after_client() -> None:
            # However slow it is, a client leaves; not where requests fail, which would never end.
            while time.perf_counter() < end or not (seen.num_left or seen.errors):
                question = rnd.choice(questions)
                try:
                    # A salt now and then, so that the prefix cache is not all there is.
                    salt = {"cache_salt": str(rnd.randrange(1000))} if rnd.random() < 0.3 else {}
                    body = question.body | salt | {"seed": rnd.randrange(1 << 30)}
                    await ask(client, rnd, body, question.path, seen)
                except (httpx2.HTTPError, ValueError) as error:
                    seen.errors.append(repr(error)[:300])

        await asyncio.gather(*(client_after_client() for _ in range(concurrency)))


async def _watch(server: ServeProcess, seen: Measured) -> None:
    processes = [psutil.Process(server.popen.pid), server.engine()]
    while True:
        sizes = [process.memory_info().rss / 2**20 for process in processes]
        seen.memory.append((time.perf_counter(), sizes[0], sizes[1]))
        await asyncio.sleep(SAMPLE_SECONDS)


async def _run(server: ServeProcess, seconds: float, concurrency: int, seen: Measured) -> None:
    watching = asyncio.create_task(_watch(server, seen))
    stopped = threading.Event()
    try:
        disturbing = asyncio.to_thread(hostile.disturb, server.address, seconds, stopped)
        _, disturbed = await asyncio.gather(
            _load(server.address, seconds, concurrency, seen), disturbing
        )
    finally:
        stopped.set()  # a thread that goes on would hold up the end after Ctrl-C
        watching.cancel()
    seen.hostile = disturbed.counts
    seen.errors += disturbed.wrong


def run(
    seconds: float,
    concurrency: int,
    warmup: float,
    start: Callable[..., ServeProcess] = ServeProcess,
) -> dict[str, Any]:
    """Run a server under load.

    Args:
        seconds: Of load.
        concurrency: Clients; more than the server runs at once saturate it.
        warmup: First part whose memory does not count, in seconds: caches and buffers fill.
        start: Starts the server.
    """
    seen = Measured()
    with start(SERVER) as server:
        server.wait_ready()
        begin = time.perf_counter()
        asyncio.run(_run(server, seconds, concurrency, seen))
        with httpx2.Client(base_url=server.address, timeout=60) as client:
            server_state.wait_until_idle(client)
            counted = server_state.counters(client)
            heaps = server_state.heaps(client)
            blocks_used, integrity = server_state.cache_state(client)
        exit_code = server.end()
    slopes = [
        _slope([(row[0], row[part]) for row in seen.memory if row[0] - begin >= warmup])
        for part in (1, 2)
    ]
    third = seconds / 3
    first = [gap for when, gap in seen.gaps if when - begin < third]
    last = [gap for when, gap in seen.gaps if 2 * third <= when - begin < seconds]
    parts = first, last  # of no gaps where the machine stood still: nothing is known
    return {
        "seconds": seconds,
        "warmup_seconds": warmup,
        "concurrency": concurrency,
        "requests": sum(seen.statuses.values()),
        "statuses": dict(seen.statuses),
        "left": seen.num_left,
        "hostile": dict(seen.hostile),
        "tokens_seen": seen.num_tokens,
        "tokens_a_second": round(counted["generation_tokens"] / seconds, 1),
        "errors": len(seen.errors),
        "first_errors": seen.errors[:5],
        "server_mib": _ends(seen.memory, 1, begin + warmup),
        "engine_mib": _ends(seen.memory, 2, begin + warmup),
        "heaps_mib": heaps,
        "server_slope_mib_a_minute": round(slopes[0], 3),
        "engine_slope_mib_a_minute": round(slopes[1], 3),
        "itl_p50_ms": [round(1000 * statistics.median(part or [math.nan]), 3) for part in parts],
        "itl_p99_ms": [round(1000 * _p99(part), 3) for part in parts],
        "itl_p99_ratio_last_to_first_third": round(_p99(last) / _p99(first), 3),
        "engine_restarts": counted["engine_restarts"],
        "blocks_in_use_afterwards": blocks_used,
        "integrity": integrity,
        "exit_code": exit_code,
    }


def problems(outcome: dict[str, Any]) -> list[str]:
    """Return what was not reached, as text."""
    rules = [
        ("no errors", outcome["errors"] == 0),
        ("no restart", outcome["engine_restarts"] == 0),
        ("no block left in use", outcome["blocks_in_use_afterwards"] == 0),
        ("a whole pool", outcome["integrity"] == "ok"),
        ("exit code 0", outcome["exit_code"] == 0),
        ("server memory", outcome["server_slope_mib_a_minute"] < MAX_SLOPE_MIB_A_MINUTE),
        ("engine memory", outcome["engine_slope_mib_a_minute"] < MAX_SLOPE_MIB_A_MINUTE),
        ("p99 ITL", outcome["itl_p99_ratio_last_to_first_third"] <= MAX_ITL_RATIO),
    ]
    return [name for name, holds in rules if not holds]


def _slope(points: list[tuple[float, float]]) -> float:
    """Return the least-squares slope in units a minute."""
    if len(points) < 2:
        return 0.0
    times, values = zip(*points, strict=True)
    return 60 * statistics.linear_regression(times, values).slope


def _ends(memory: list[tuple[float, float, float]], part: int, begin: float) -> list[float]:
    counted = [row[part] for row in memory if row[0] >= begin] or [memory[-1][part]]
    return [round(counted[0], 1), round(counted[-1], 1)]


def _p99(gaps: list[float]) -> float:
    return statistics.quantiles(gaps, n=100)[98] if len(gaps) > 1 else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--warmup", type=float, default=600.0)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--no-result", action="store_true", help="write no result file")
    arguments = parser.parse_args()
    outcome = run(arguments.seconds, arguments.concurrency, arguments.warmup)
    missed = problems(outcome)
    table = Table("what", "value")
    for name, value in outcome.items():
        table.add_row(name, str(value))
    table.add_row("missed", ", ".join(missed) or "nothing")
    Console().print(table)
    if not arguments.no_result:
        written = results.write("soak", {**outcome, "missed": missed}, server=" ".join(SERVER))
        print(f"written: {written.name}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
