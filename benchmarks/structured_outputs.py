"""Structured output under test: valid on every kind of tokenizer, and harmless to neighbours.

    scripts/bench structured_outputs [--schemas 500] [--hostile 200]

``valid``: for each kind of tokenizer a small random model, whose text without a grammar is noise,
answers random schemas over HTTP; each answer is checked by ``jsonschema``, each forced call by its
function's schema. ``hostile``: random constraints that are meant to hurt arrive at ``quire serve``,
several at a time, while another client streams; the gaps between that client's tokens are compared
with those of the quiet times before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.parse import urlsplit

import httpx2
import jsonschema
from rich.console import Console

from benchmarks import results
from benchmarks.sse_client import SseClient, Timeline
from tools.hostile_grammars import hostile_grammar
from tools.random_schemas import random_schema
from tools.serve_process import ServeProcess
from tools.small_tokenizers import MAKERS, small_checkpoint

CHAT = "/v1/chat/completions"
FLAGS = ["--memory", "64MiB", "--max-num-seqs", "32", "--disable-uvicorn-access-log"]
MAX_TOKENS, CONTEXT = 1500, 8192
#: Hostile requests under way at once, from as many connections.
AT_ONCE = 8
#: Of the neighbour, alone before and after the attack: the largest of as many gaps is compared.
QUIET_ANSWERS, ANSWER_TOKENS = 15, 400
MAX_GAP_RATIO = 5.0


def request_of(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a request for a number's schema, as a tool's arguments every fourth time."""
    schema = random_schema(seed)
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": f"Number {seed}"}],
        "max_tokens": MAX_TOKENS,
        "seed": seed,
        "stream": False,
    }
    if seed % 4 or schema.get("type") != "object":
        form = {"name": "x", "schema": schema}
        return schema, body | {"response_format": {"type": "json_schema", "json_schema": form}}
    function = {"name": "call_me", "parameters": schema}
    tools = [{"type": "function", "function": function}]
    return schema, body | {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}


def verdict(response: httpx2.Response, schema: dict[str, Any]) -> str:
    """Return ``valid``, or what is wrong with an answer."""
    if response.status_code != 200:
        return f"status {response.status_code}"
    (choice,) = response.json()["choices"]
    if choice["finish_reason"] == "length":
        return "cut off"
    text = choice["message"]["content"]
    if choice["message"].get("tool_calls"):
        (call,) = choice["message"]["tool_calls"]
        text = call["function"]["arguments"]
    try:
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
    except (TypeError, ValueError, jsonschema.ValidationError) as error:
        return f"invalid: {error}"[:200]
    return "valid"


def all_valid(num_schemas: int, console: Console) -> Iterator[dict[str, Any]]:
    """Yield what the answers of each kind of tokenizer were."""
    for kind in MAKERS:
        with tempfile.TemporaryDirectory() as folder:
            small_checkpoint(Path(folder), kind, max_position_embeddings=CONTEXT)
            with ServeProcess([folder, *FLAGS]) as server:
                address = server.wait_ready()
                found: Counter[str] = Counter()
                with httpx2.Client(base_url=address, timeout=300) as client:
                    for seed in range(num_schemas):
                        schema, body = request_of(seed)
                        found[verdict(client.post(CHAT, json=body), schema)] += 1
                server.end()
        console.print(kind, dict(found))
        yield {"tokenizer": kind, "schemas": num_schemas, **found}


class Neighbour:
    """A client that streams all the time, one answer after another."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None and parts.port is not None
        self._client = SseClient(parts.hostname, parts.port)
        self.timelines: list[Timeline] = []

    async def stream(self, num_tokens: int) -> list[float]:
        """Return the gaps of an answer of that many tokens, in seconds."""
        body = {
            "messages": [{"role": "user", "content": "Tell me something long"}],
            "max_tokens": num_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        timeline = await self._client.stream(CHAT, body)
        assert timeline.num_tokens == num_tokens, timeline.num_tokens
        return [b - a for a, b in pairwise(timeline.arrivals)]

    def close(self) -> None:
        """Close its connection."""
        self._client.close()


async def attack(address: str, num_grammars: int) -> Counter[str]:
    """Send hostile grammars, several at a time; return how they ended."""
    endings: Counter[str] = Counter()
    seeds = iter(range(num_grammars))

    async def send(client: httpx2.AsyncClient) -> None:
        for seed in seeds:
            body = {
                "messages": [{"role": "user", "content": "Hi"}],
                "max_tokens": 8,
                "structured_outputs": hostile_grammar(seed),
            }
            response = await client.post(CHAT, json=body)
            endings[str(response.status_code)] += 1

    async with httpx2.AsyncClient(base_url=address, timeout=600) as client:
        await asyncio.gather(*(send(client) for _ in range(AT_ONCE)))
    return endings


async def neighbours_gaps(model: str, num_grammars: int) -> dict[str, Any]:
    """Return the gaps of a streaming neighbour, alone and under attack."""
    server = ServeProcess([model, *FLAGS, "--grammar-compilation-timeout", "2"])
    neighbour = None
    try:
        address = server.wait_ready()
        neighbour = Neighbour(address)
        await neighbour.stream(100)
        quiet: list[float] = []
        for _ in range(QUIET_ANSWERS):
            quiet += await neighbour.stream(ANSWER_TOKENS)
        start = time.perf_counter()
        attacking = asyncio.create_task(attack(address, num_grammars))
        attacked: list[float] = []
        while not attacking.done():
            attacked += await neighbour.stream(ANSWER_TOKENS)
        endings = await attacking
        for _ in range(QUIET_ANSWERS):
            quiet += await neighbour.stream(ANSWER_TOKENS)
        return {
            "hostile": num_grammars,
            "endings": dict(endings),
            "attack_seconds": time.perf_counter() - start,
            "quiet": gaps_of(quiet),
            "attacked": gaps_of(attacked),
            "max_ratio": max(attacked) / max(quiet),
            "p99_ratio": quantiles(attacked, n=100)[98] / quantiles(quiet, n=100)[98],
        }
    finally:
        if neighbour is not None:
            neighbour.close()
        server.end()


def gaps_of(gaps: list[float]) -> dict[str, float]:
    """Return what gaps, in seconds, are like."""
    return {
        "count": len(gaps),
        "median": median(gaps),
        "p99": quantiles(gaps, n=100)[98],
        "max": max(gaps),
    }


def main() -> None:
    """Run both parts and write ``results/structured_outputs.json``; exit with 1 on a failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemas", type=int, default=500)
    parser.add_argument("--hostile", type=int, default=200)
    parser.add_argument("--model", default="quire-tiny", help="of the hostile part")
    options = parser.parse_args()
    console = Console()
    valid = list(all_valid(options.schemas, console)) if options.schemas else []
    hostile: dict[str, Any] = {}
    if options.hostile:
        hostile = asyncio.run(neighbours_gaps(options.model, options.hostile))
        console.print(hostile)
    found = {
        "valid": {row["tokenizer"]: row for row in valid},
        "hostile": {options.model: hostile} if hostile else {},
    }
    run = {"schemas": options.schemas, "hostile": options.hostile}
    print(results.merge("structured_outputs", found, run=run))
    wrong = [row for row in valid if row.get("valid") != row["schemas"]]
    wrong += [status for status in hostile.get("endings", {}) if status.startswith("5")]
    if wrong or hostile.get("max_ratio", 0.0) > MAX_GAP_RATIO:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
