"""What HTTP costs: the server against the engine in-process, on the same model, in turn.

    python -m benchmarks.server_overhead [CHECKPOINT ...]

One client, alone and then among others that never pause: time to the first token and between
tokens, in-process (``AsyncLLM.generate`` on token ids) and through ``quire serve``
(``/v1/chat/completions``, streamed: template, tokenizer, engine process, detokenizer, server-sent
events). Many clients: output tokens per second of both. The client of the server shares the machine
with it, as a client on loopback does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import uvloop

from benchmarks import results
from benchmarks.sse_client import SseClient, Timeline
from quire import SamplingParams
from quire.llm.async_llm import AsyncLLM
from quire.settings.config import EngineConfig
from tools.serve_process import ServeProcess

LIMITS = {"first_token_seconds": 0.003, "gap_seconds": 0.001, "throughput_share": 0.10}
#: A server that takes longer hangs.
ANSWER_SECONDS = 120
_names = map("r{}".format, count())

Ask = Callable[[int, int, int], Awaitable[Timeline]]


def message(number: int, num_words: int) -> str:
    """Return a question that shares no prefix with those of other numbers."""
    return f"{number} " + " ".join(f"w{(number * 31 + i) % 97}" for i in range(num_words))


@contextlib.asynccontextmanager
async def in_process(model: str, settings: dict[str, Any]) -> AsyncIterator[Ask]:
    """Load the engine here; asking takes (number, words, tokens)."""
    engine = AsyncLLM(model, **settings)

    async def ask(number: int, num_words: int, num_tokens: int) -> Timeline:
        chat = [{"role": "user", "content": message(number, num_words)}]
        template = engine.tokenizer.chat_template
        assert template is not None
        text = template.render(chat, add_generation_prompt=True, continue_final_message=False)
        token_ids = engine.tokenizer.encode(text, add_special_tokens=False)
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        prompt = {"prompt_token_ids": token_ids}
        timeline = Timeline(time.perf_counter())
        async for output in engine.generate(prompt, params, next(_names)):
            timeline.arrivals.append(time.perf_counter())
            timeline.num_tokens = len(output.outputs[0].token_ids)
        return timeline

    try:
        yield ask
    finally:
        await engine.shutdown()


@contextlib.asynccontextmanager
async def over_http(model: str, flags: list[str], clients: int) -> AsyncIterator[Ask]:
    """Start a server; asking takes (number, words, tokens), each number on its own connection."""
    # Its log is read all the time: a full pipe would stop the server.
    server = ServeProcess([model, *flags, "--disable-uvicorn-access-log"])
    connections: list[SseClient] = []
    try:
        address = urlsplit(server.wait_ready())
        assert address.hostname is not None and address.port is not None
        connections += [SseClient(address.hostname, address.port) for _ in range(clients)]

        async def ask(number: int, num_words: int, num_tokens: int) -> Timeline:
            body = {
                "messages": [{"role": "user", "content": message(number, num_words)}],
                "max_tokens": num_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            connection = connections[number % clients]
            async with asyncio.timeout(ANSWER_SECONDS):
                return await connection.stream("/v1/chat/completions", body)

        yield ask
    finally:
        for connection in connections:
            connection.close()
        server.end()


async def one_client(
    asks: dict[str, Ask], words: int, tokens: int, repeats: int
) -> dict[str, dict[str, Any]]:
    """Return per way the times to the first token and per token of requests asked in turn."""
    found: dict[str, list[Timeline]] = {name: [] for name in asks}
    for number in range(repeats + 3):
        for name, ask in asks.items():
            timeline = await ask(number, words, tokens)
            if number >= 3:
                found[name].append(timeline)
    return {
        name: {
            "first_token_seconds": results.summary([t.first for t in timelines]),
            "gap_seconds": results.summary([t.gap for t in timelines]),
        }
        for name, timelines in found.items()
    }


async def many_clients(
    asks: dict[str, Ask], clients: int, words: int, tokens: int, rounds: int
) -> dict[str, dict[str, Any]]:
    """Return per way tokens per second and times of rounds of ``clients`` requests at once."""
    numbers = count(1000 * clients, clients)
    found: dict[str, dict[str, list[float]]] = {
        name: {"tokens_per_second": [], "first_token_seconds": [], "gap_seconds": []}
        for name in asks
    }
    for round_number in range(rounds + 1):
        base = next(numbers)
        for name, ask in asks.items():
            start = time.perf_counter()
            timelines = await asyncio.gather(
                *(ask(base + client, words, tokens) for client in range(clients))
            )
            seconds = time.perf_counter() - start
            total = sum(timeline.num_tokens for timeline in timelines)
            print(f"  round {round_number} {name}: {total / seconds:.1f} tok/s", flush=True)
            if round_number == 0:
                continue
            found[name]["tokens_per_second"].append(total / seconds)
            found[name]["first_token_seconds"].append(median(t.first for t in timelines))
            found[name]["gap_seconds"].append(median(t.gap for t in timelines))
    return {
        name: {key: results.summary(values) for key, values in figures.items()}
        for name, figures in found.items()
    }


async def one_among_many(
    ask: Ask, clients: int, words: int, tokens: int, repeats: int
) -> dict[str, dict[str, float]]:
    """Return the times of one client's requests while the other clients ask without a pause."""
    done = False
    numbers = count(100_000 * clients)

    async def keep_asking(client: int) -> None:
        while not done:
            await ask(next(numbers) * clients + client, words, 4 * tokens)

    others = [asyncio.create_task(keep_asking(client)) for client in range(1, clients)]
    await ask(0, words, 4 * tokens)
    timelines = [await ask(number * clients, words, tokens) for number in range(1, repeats + 1)]
    done = True
    await asyncio.gather(*others)
    return {
        "first_token_seconds": results.summary([t.first for t in timelines]),
        "gap_seconds": results.summary([t.gap for t in timelines]),
    }


async def measure(model: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row for one client and one for many."""
    settings: dict[str, Any] = {
        "threads": options.threads,
        "max_num_seqs": options.clients,
        "max_model_len": 1024,
        "enable_prefix_caching": False,
    }
    if options.quantization:
        settings["quantization"] = options.quantization
    EngineConfig.from_keywords(model=model, **settings)  # refuses what is wrong at once
    words = [f"--{name.replace('_', '-')}" for name in settings]
    given: list[str] = []
    for word, value in zip(words, settings.values(), strict=True):
        if value is False:
            given.append(word.replace("--", "--no-", 1))
        else:
            given += [word, str(value)]
    name = model.rstrip("/").rpartition("/")[2]
    rows: list[dict[str, Any]] = []
    async with (
        in_process(model, settings) as direct,
        over_http(model, given, options.clients) as http,
    ):
        asks = {"in_process": direct, "http": http}
        sizes = options.words, options.tokens
        if options.repeats:
            alone = await one_client(asks, *sizes, options.repeats)
            rows.append({"model": name, "clients": 1, **alone, **added(alone)})
            report(rows[-1])
            shared = {
                way: await one_among_many(ask, options.clients, *sizes, options.repeats)
                for way, ask in asks.items()
            }
            rows.append({"model": name, "one_among": options.clients, **shared, **added(shared)})
            report(rows[-1])
        if options.rounds:
            found = await many_clients(asks, options.clients, *sizes, options.rounds)
            speeds = [found[way]["tokens_per_second"]["median"] for way in ("http", "in_process")]
            row = {"model": name, "clients": options.clients, **found}
            row["lost_throughput_share"] = 1 - speeds[0] / speeds[1]
            row["limit_throughput_share"] = LIMITS["throughput_share"]
            rows.append(row)
            report(row)
    return rows


def added(found: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return what HTTP adds to the medians, and how much it may with one client."""
    figures = {}
    for key in ("first_token_seconds", "gap_seconds"):
        figures[f"added_{key}"] = found["http"][key]["median"] - found["in_process"][key]["median"]
        figures[f"limit_{key}"] = LIMITS[key]
    return figures


def report(row: dict[str, Any]) -> None:
    """Print a row."""
    among = f"one among {row['one_among']}" if "one_among" in row else row["clients"]
    print(f"{row['model']}, clients: {among}")
    for way in ("in_process", "http"):
        figures = row[way]
        speed = figures.get("tokens_per_second")
        print(
            f"  {way:11} first token {figures['first_token_seconds']['median'] * 1e3:8.2f} ms, "
            f"gap {figures['gap_seconds']['median'] * 1e3:7.3f} ms"
            + (f", {speed['median']:.1f} tok/s (spread {speed['spread']:.1%})" if speed else "")
        )
    if "lost_throughput_share" in row:
        print(f"  throughput lost {row['lost_throughput_share']:.1%} (limit 10%)")
    else:
        print(
            f"  added: first token {row['added_first_token_seconds'] * 1e3:.2f} ms (limit 3), "
            f"gap {row['added_gap_seconds'] * 1e3:.3f} ms (limit 1)",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoints", nargs="*", default=["quire-tiny"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--words", type=int, default=24, help="of each prompt")
    parser.add_argument("--tokens", type=int, default=48, help="of each answer")
    parser.add_argument("--repeats", type=int, default=31, help="requests of the one client")
    parser.add_argument("--rounds", type=int, default=5, help="of all clients")
    parser.add_argument("--quantization")
    parser.add_argument("--name", default="server_overhead", help="of the result file")
    options = parser.parse_args()
    sys.setswitchinterval(0.001)  # as quire serve has it
    rows: list[dict[str, Any]] = []
    for model in options.checkpoints:
        rows += uvloop.run(measure(model, options))
    extra = {"threads": options.threads, "quantization": options.quantization}
    print(f"written: {results.write(options.name, rows, **extra).name}")


if __name__ == "__main__":
    main()
