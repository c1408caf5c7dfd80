"""Many streams at once over HTTP: what a token and a request cost the server and its engine.

    scripts/bench streams [--model quire-tiny] [--streams 1 32 256 1024] [--flags='...' ...]

All streams begin at once, with short prompts. Stated are CPU time by process, apart for requests
and for tokens (from answers of two lengths), and what clients saw: tokens per second, times to the
first token, gaps between tokens, and how many requests ran at once. The engine's time holds that of
its kernels. With several ``--flags`` a server of each is asked in turn, round after round.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import count
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import psutil
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.server_overhead import message
from benchmarks.sse_client import SseClient, Timeline
from tools.serve_process import ServeProcess

#: Often enough to see the top, seldom enough to cost nothing.
LOOK_SECONDS = 0.1
_RUNNING = re.compile(
    rb"^vllm:num_requests_running\S* (\S+)|^quire:num_requests_running\S* (\S+)", re.M
)
_numbers = count()


@dataclass
class Served:
    """One round of all streams.

    Attributes:
        seconds: From the first request to the last answer's end.
        cpu_seconds: By process, ``server`` and ``engine``.
        timelines: Of all streams.
        most_running: Requests, as the metrics say.
    """

    seconds: float
    cpu_seconds: dict[str, float]
    timelines: list[Timeline]
    most_running: int

    @property
    def num_tokens(self) -> int:
        """Of all answers."""
        return sum(timeline.num_tokens for timeline in self.timelines)


class Server:
    """A server and as many connections to it as there are streams at most.

    Args:
        model: A checkpoint or a name.
        flags: Further ones of ``quire serve``.
        most: Streams.
    """

    def __init__(self, model: str, flags: list[str], most: int) -> None:
        limits = ["--max-num-seqs", str(most), "--max-num-queued-reqs", str(2 * most)]
        limits += ["--max-num-queued-tokens", str(1000 * most), "--max-model-len", "1024"]
        given = [*limits, "--no-enable-prefix-caching", "--disable-uvicorn-access-log", *flags]
        self._process = ServeProcess([model, *given])
        self._url = self._process.wait_ready()
        self._processes = {
            "server": psutil.Process(self._process.popen.pid),
            "engine": self._process.engine(),
        }

    def close(self) -> None:
        """End it."""
        self._process.end()

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time used so far by process."""
        return {name: sum(p.cpu_times()[:2]) for name, p in self._processes.items()}

    async def serve(self, num_streams: int, num_tokens: int) -> Served:
        """Ask for all answers at once."""
        address = urlsplit(self._url)
        assert address.hostname is not None and address.port is not None
        clients = [SseClient(address.hostname, address.port) for _ in range(num_streams)]
        bodies = [_body(num_tokens) for _ in clients]
        most = 0

        async def look() -> None:
            nonlocal most
            while True:
                most = max(most, await asyncio.to_thread(self._num_running))
                await asyncio.sleep(LOOK_SECONDS)

        looking = asyncio.create_task(look())
        before, start = self.cpu_seconds(), time.perf_counter()
        asked = (
            client.stream("/v1/chat/completions", body)
            for client, body in zip(clients, bodies, strict=True)
        )
        timelines = await asyncio.gather(*asked)
        seconds = time.perf_counter() - start
        used = {name: after - before[name] for name, after in self.cpu_seconds().items()}
        looking.cancel()
        for client in clients:
            client.close()
        return Served(seconds, used, list(timelines), most)

    def _num_running(self) -> int:
        with urlopen(f"{self._url}/metrics", timeout=30) as answer:
            found = _RUNNING.search(answer.read())
        return int(float(found[1] or found[2])) if found else 0


def _body(num_tokens: int) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": message(next(_numbers), 4)}],
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def percentile(values: list[float], part: float) -> float:
    """Return the value below which that part of them lies."""
    return sorted(values)[min(int(part * len(values)), len(values) - 1)]


def summarize(num_streams: int, short: list[Served], long: list[Served]) -> dict[str, Any]:
    """Return the figures of rounds with answers of two lengths."""
    row: dict[str, Any] = {"streams": num_streams}
    for name in ("server", "engine"):
        tokens, requests = [], []
        for a, b in zip(short, long, strict=True):
            per_token = (b.cpu_seconds[name] - a.cpu_seconds[name]) / (b.num_tokens - a.num_tokens)
            tokens.append(per_token)
            requests.append((a.cpu_seconds[name] - per_token * a.num_tokens) / num_streams)
        row[f"{name}_seconds_per_token"] = results.summary(tokens)
        row[f"{name}_seconds_per_request"] = results.summary(requests)
    first = [[timeline.first for timeline in one.timelines] for one in long]
    gaps = [
        [b - a for t in one.timelines for a, b in zip(t.arrivals, t.arrivals[1:], strict=False)]
        for one in long
    ]
    return row | {
        "tokens_per_second": results.summary([one.num_tokens / one.seconds for one in long]),
        "first_token_p50": results.summary([percentile(one, 0.5) for one in first]),
        "first_token_p99": results.summary([percentile(one, 0.99) for one in first]),
        "last_token_p50": results.summary(
            [percentile([t.arrivals[-1] - t.start for t in one.timelines], 0.5) for one in long]
        ),
        "gap_p50": results.summary([percentile(one, 0.5) for one in gaps]),
        "gap_p99": results.summary([percentile(one, 0.99) for one in gaps]),
        "most_running": max(one.most_running for one in long),
    }


async def measure(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Return rows by the flags of the server."""
    rows: dict[str, list[dict[str, Any]]] = {flags: [] for flags in options.flags}
    with ExitStack() as stack:
        servers = {
            flags: stack.enter_context(
                closing(Server(options.model, flags.split(), max(options.streams)))
            )
            for flags in options.flags
        }
        for num_streams in options.streams:
            seen: dict[str, tuple[list[Served], list[Served]]] = {f: ([], []) for f in servers}
            for number in range(options.rounds + 1):
                for flags, server in servers.items():
                    short = await server.serve(num_streams, options.tokens // 2)
                    long = await server.serve(num_streams, options.tokens)
                    if number or not options.rounds:
                        seen[flags][0].append(short)
                        seen[flags][1].append(long)
            for flags, (short_rounds, long_rounds) in seen.items():
                rows[flags].append(summarize(num_streams, short_rounds, long_rounds))
                report(flags, rows[flags][-1])
    return rows


def report(flags: str, row: dict[str, Any]) -> None:
    """Print a row."""
    table = Table(
        "streams", "server µs/token", "µs/request", "engine µs/token", "µs/request", "tok/s",
        "first p50 / p99 ms", "last p50", "gap p50 / p99 ms", "most running", title=flags or None,
    )  # fmt: skip

    def median(key: str, factor: float = 1e6) -> float:
        found: float = row[key]["median"] * factor
        return found

    table.add_row(
        str(row["streams"]),
        *(
            f"{median(f'{name}_seconds_per_{part}'):.1f}"
            for name in ("server", "engine")
            for part in ("token", "request")
        ),
        f"{median('tokens_per_second', 1):.0f}",
        f"{median('first_token_p50', 1e3):.0f} / {median('first_token_p99', 1e3):.0f}",
        f"{median('last_token_p50', 1e3):.0f}",
        f"{median('gap_p50', 1e3):.1f} / {median('gap_p99', 1e3):.1f}",
        str(row["most_running"]),
    )
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="quire-tiny")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32, 256, 1024])
    parser.add_argument("--tokens", type=int, default=128, help="of the longer answers")
    parser.add_argument("--rounds", type=int, default=3, help="after one that does not count")
    parser.add_argument("--flags", action="append", help="of one server, as one text")
    parser.add_argument("--name", default="streams", help="of the result file")
    parser.add_argument("--no-result", action="store_true", help="write no result file")
    options = parser.parse_args()
    options.flags = options.flags or [""]
    rows = uvloop.run(measure(options))
    if not options.no_result:
        model = options.model.rstrip("/").rpartition("/")[2]
        print(f"written: {results.write(options.name, rows, model=model).name}")


if __name__ == "__main__":
    main()
