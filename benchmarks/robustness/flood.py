"""Many streamed completions at once against one server, and what both sides saw of them."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
import psutil

from benchmarks.robustness import alerts, server_state

#: A request that waits longer counts as hung.
HANG_SECONDS = 300.0
POLL_SECONDS = 0.05
PATH = "/v1/completions"
#: Of quire-tiny's vocabulary, after its special tokens.
TOKEN_IDS = (300, 2000)
ALERTS = ("QuireCacheFull", "QuirePreempts", "QuireRefuses")


@dataclass(frozen=True)
class Shape:
    """Requests of one size, in tokens.

    Attributes:
        number: Of requests.
        num_shared: Leading prompt tokens that all have in common.
        num_own: Further prompt tokens, of each request alone.
        num_output: Tokens each generates, no more and no fewer.
    """

    number: int
    num_own: int
    num_output: int
    num_shared: int = 0

    def bodies(self, seed: int = 0) -> list[dict[str, Any]]:
        """Return the requests' bodies; the same seed gives the same ones."""
        rnd = random.Random(seed)
        shared = rnd.choices(range(*TOKEN_IDS), k=self.num_shared)
        return [
            {
                "prompt": shared + rnd.choices(range(*TOKEN_IDS), k=self.num_own),
                "max_tokens": self.num_output,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            for _ in range(self.number)
        ]


@dataclass
class Seen:
    """What clients and scrapes saw; ``wrong`` as text."""

    statuses: Counter[str] = field(default_factory=Counter)
    first_token_seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    scrapes: list[dict[str, float]] = field(default_factory=list)

    @property
    def refused(self) -> int:
        """Requests whose answer is an error."""
        return self.statuses.total() - self.statuses["200"]


async def _ask(client: httpx2.AsyncClient, body: dict[str, Any], seen: Seen) -> None:
    begin = time.perf_counter()
    async with client.stream("POST", PATH, json=body) as response:
        status = response.status_code
        seen.statuses[str(status)] += 1
        if status != 200:
            error = json.loads(await response.aread())["error"]
            if status == 429 and int(response.headers.get("Retry-After", 0)) < 1:
                seen.wrong.append("429 without Retry-After")
            if status == 400 and error["type"] != "context_length_exceeded" or status >= 500:
                seen.wrong.append(str(error))
            return
        reason, num_tokens, events = None, 0, []
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                if not events:
                    seen.first_token_seconds.append(time.perf_counter() - begin)
                events.append(line.removeprefix("data: "))
        for event in map(json.loads, events[:-1]):
            reason = next((c["finish_reason"] for c in event.get("choices", ())), None) or reason
            num_tokens = (event.get("usage") or {}).get("completion_tokens", num_tokens)
        if events[-1:] != ["[DONE]"] or (reason, num_tokens) != ("length", body["max_tokens"]):
            seen.wrong.append(f"ended as {reason} with {num_tokens} tokens, {events[-1:]}")


async def _watch(
    client: httpx2.AsyncClient,
    seen: Seen,
    over: asyncio.Event,
    engine: psutil.Process,
    number: int,
) -> None:
    """Look at a server again and again, while its engine stands still.

    Before the first look it does until all ``number`` requests are there or refused. A client that
    is kept busy by its answers would otherwise come too late to see what is soon over.
    """
    # Never cancelled: a request that is, while its pool closes connections gone idle, leaves them.
    engine.suspend()
    try:
        while not over.is_set():
            pending = (await client.get("/health/progress")).json()["pending"]
            if pending + seen.refused >= number:
                break
            await asyncio.sleep(POLL_SECONDS)
        while not over.is_set():
            engine.suspend()
            text = (await client.get("/metrics")).text
            seen.scrapes.append(server_state.parse_counters(text))
            engine.resume()
            await asyncio.sleep(POLL_SECONDS)
    finally:
        engine.resume()


async def _send(
    url: str, bodies: Sequence[dict[str, Any]], seen: Seen, engine: psutil.Process
) -> None:
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
        over = asyncio.Event()
        watching = asyncio.create_task(_watch(client, seen, over, engine, len(bodies)))
        asked = asyncio.gather(
            *(_ask(client, body, seen) for body in bodies), return_exceptions=True
        )
        try:
            endings = await asyncio.wait_for(asked, HANG_SECONDS)
            seen.wrong += [repr(ending) for ending in endings if ending is not None]
        except TimeoutError:
            seen.wrong.append(f"a request hangs after {HANG_SECONDS:g} s")
        finally:
            over.set()
            await watching


def send(url: str, bodies: Sequence[dict[str, Any]], engine: psutil.Process) -> dict[str, Any]:
    """Send all requests at once to an idle server and read every answer to its end.

    Args:
        url: Address of the server.
        bodies: What each request asks.
        engine: Process of the server's engine; it begins when no request is still on its way, and
            stands still while metrics are read.

    Returns:
        Counts of the answers by status, of the engine's work, the greatest of what scrapes saw, how
        many looked while requests ran and none had ended, which alerts of ``deploy/`` were true
        then, and in ``wrong`` what must not be.
    """
    seen = Seen()
    with httpx2.Client(base_url=url, timeout=60) as client:
        before = server_state.counters(client)
        begin = time.perf_counter()
        asyncio.run(_send(url, bodies, seen, engine))
        seconds = time.perf_counter() - begin
        server_state.wait_until_idle(client)
        after = server_state.counters(client)
        blocks_used, integrity = server_state.cache_state(client)
    if blocks_used or integrity != "ok":
        seen.wrong.append(f"{blocks_used} blocks in use with nothing to do; integrity: {integrity}")
    if after["engine_restarts"]:
        seen.wrong.append("the engine was restarted")
    if sum(seen.statuses.values()) != len(bodies):
        seen.wrong.append(f"{len(bodies)} asked, {dict(seen.statuses)} were answered")
    delta = {name: value - before.get(name, 0.0) for name, value in after.items()}
    computed, again = delta["num_computed_tokens"], delta["preemption_recomputed_tokens"]
    moments = [*seen.scrapes, after]
    num_before = server_state.num_ended(before)

    def is_early(now: dict[str, float]) -> bool:
        return now["num_requests_running"] > 0 and server_state.num_ended(now) == num_before

    rules = {name: alerts.load(name) for name in ALERTS}
    fired = [name for name, rule in rules.items() if any(rule(before, now) for now in moments)]
    rest = [name for name, rule in rules.items() if rule(before, before)]
    return {
        "statuses": dict(sorted(seen.statuses.items())),
        "generated_tokens": delta["generation_tokens"],
        "steps": delta["num_steps"],
        "computed_tokens": computed,
        "recomputed_tokens": again,
        "useful_share": round(1 - again / computed, 4) if computed else 1.0,
        "preemptions": delta["num_preemptions"],
        "prefix_hit_tokens": delta["prefix_cache_hits"],
        "peak_kv_usage": round(max(now["kv_cache_usage_perc"] for now in moments), 4),
        "peak_running": max(now["num_requests_running"] for now in moments),
        "peak_waiting": max(now["num_requests_waiting"] for now in moments),
        "early_looks": sum(map(is_early, seen.scrapes)),
        "alerts": fired,
        "alerts_at_rest": rest,
        "seconds": round(seconds, 2),
        "tokens_a_second": round(delta["generation_tokens"] / seconds, 1),
        "tokens_a_step": round(delta["generation_tokens"] / max(delta["num_steps"], 1), 2),
        "ttft_p50_seconds": round(statistics.median(seen.first_token_seconds or [0.0]), 3),
        "wrong": seen.wrong,
    }
