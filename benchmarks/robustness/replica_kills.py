"""``scripts/replica_kills``: engines killed one after the other while clients ask.

Servers in turn: one with two replicas, one with an engine for prompts and two for outputs, one with
an engine of its own and one on another machine, which is a process of this one. Of each kind of
engine one is killed again and again with SIGKILL, or the other machine whole. Every request must
end exactly once: with all its tokens, which are those that it gets alone, or with an error that
says so; the server must answer again in time; and when it has ended no process is left.

What is counted is the cost of *one* kill: the next one comes when all engines run again, at the
earliest ``--period`` seconds later, and a client that is refused comes back when it was told to.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import threading
import time
from bisect import bisect_right
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2
import psutil

from benchmarks import results
from tools.serve_process import ServeProcess

MODEL = ("quire-tiny", "--threads", "1", "--memory", "700MiB", "--max-num-seqs", "16")
SITES = {
    "replicas": ("--data-parallel-size", "2"),
    "roles": ("--disaggregate", "1p2d", "--disaggregate-tokens", "64"),
    "machines": ("--data-parallel-size", "2", "--nnodes", "2"),
}
#: Kind of an engine, and the server that has it.
KINDS = {
    "replica": "replicas",
    "prefill": "roles",
    "decode": "roles",
    "remote": "machines",
    "machine": "machines",
}
NUM_CLIENTS, NUM_TOKENS = 6, 48
#: After a kill, until a request is answered again; and until the next kill, at least.
MOST_SECONDS, PERIOD_SECONDS = 20.0, 12.0
PROMPT_TOKENS = (20, 800, 200, 1200)
TIMEOUT = 60.0


@dataclass(frozen=True)
class Ended:
    """How a request has ended.

    Attributes:
        ending: ``whole``, or the type of the error.
        text: All of it.
        retry_seconds: After which a refused one is to come again; 0.0 of one that was begun.
    """

    ending: str
    text: str = ""
    retry_seconds: float = 0.0


@dataclass
class Seen:
    """What the clients saw.

    Attributes:
        endings: Endings of requests, each with when it ended.
        wrong: Each thing that must not be.
    """

    endings: list[tuple[float, Ended]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def costs(self, kills: list[float]) -> dict[str, Any]:
        """Return the requests that each of some kills has cost, by when they were."""
        failed, refused = [0] * len(kills), [0] * len(kills)
        for at, one in self.endings:
            number = bisect_right(kills, at) - 1
            if one.ending != "whole" and number >= 0:
                (refused if one.retry_seconds else failed)[number] += 1
        return {
            name: results.summary([float(count) for count in counts])
            for name, counts in (("failed_requests", failed), ("refused_requests", refused))
            if counts
        }


def body(seed: int) -> dict[str, Any]:
    """Return a request; there are few different ones, so that their answers can be known."""
    draw = random.Random(seed)
    tokens = [draw.randrange(300, 2000) for _ in range(PROMPT_TOKENS[seed % len(PROMPT_TOKENS)])]
    common = {"temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    return {"prompt": tokens, "stream": seed % 3 == 0, **common}


def ask(client: httpx2.Client, seed: int) -> Ended:
    """Return how a request ended; an ending that is none raises."""
    asked = body(seed)
    if not asked["stream"]:
        answer = client.post("/v1/completions", json=asked)
        if answer.status_code != 200:
            return refused(answer)
        found = answer.json()
        assert found["choices"][0]["finish_reason"] == "length", found
        return Ended("whole", found["choices"][0]["text"])
    text, endings = "", []
    with client.stream("POST", "/v1/completions", json=asked) as answer:
        if answer.status_code != 200:
            answer.read()
            return refused(answer)
        for line in answer.iter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                endings.append("done")
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                endings.append(event["error"]["type"])
                continue
            text += event["choices"][0]["text"]
            if event["choices"][0]["finish_reason"]:
                endings.append("whole")
    given = [ending for ending in endings if ending != "done"]
    assert len(given) == 1 and endings.count("done") <= 1, endings
    return Ended(given[0], text)


def refused(answer: httpx2.Response) -> Ended:
    """Return the ending that an error body is."""
    return Ended(answer.json()["error"]["type"], "", float(answer.headers.get("retry-after", 0)))


class Site:
    """A server, and the process that stands for another machine, if it has engines there.

    Args:
        kind: Of the engines that are killed.
        flags: Further ones of the server.
    """

    def __init__(self, kind: str, flags: tuple[str, ...]) -> None:
        self._kind = kind
        arguments = [*MODEL, *SITES[KINDS[kind]], *flags]
        self._node: ServeProcess | None = None
        if KINDS[kind] == "machines":
            with socket.create_server(("127.0.0.1", 0)) as taken:
                arguments += ["--master-port", str(taken.getsockname()[1])]
            self._other = [*arguments, "--node-rank", "1", "--headless"]
            self._node = ServeProcess(self._other)
        self.server = ServeProcess(arguments)

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._processes():
            process.__exit__()

    def _processes(self) -> list[ServeProcess]:
        return [self.server, *([] if self._node is None else [self._node])]

    def engines(self) -> list[psutil.Process]:
        """Return all that run."""
        return [engine for process in self._processes() for engine in process.engines()]

    def children(self) -> list[psutil.Process]:
        """Return all that must be gone in the end."""
        running = [psutil.Process(process.popen.pid) for process in self._processes()]
        return [child for process in running for child in process.children(recursive=True)]

    def kill(self, number: int) -> bool:
        """Kill one engine of the kind, or the other machine; False when there is none now."""
        if self._kind == "machine":
            assert self._node is not None
            self._node.__exit__()
            self._node = ServeProcess(self._other)
            return True
        engines = self._victims()
        if not engines:
            return False
        engines[number % len(engines)].kill()
        return True

    def _victims(self) -> list[psutil.Process]:
        """Return the engines of the kind: those for outputs listen where blocks come in."""
        if self._node is not None:
            return self._node.engines()
        if self._kind == "replica":
            return self.server.engines()
        found = []
        for engine in self.server.engines():
            with suppress(psutil.Error):
                names = [str(one.laddr) for one in engine.net_connections(kind="unix")]
                takes_blocks = any("quire-kv-" in name for name in names)
                if takes_blocks == (self._kind == "decode"):
                    found.append(engine)
        return found

    def end(self) -> list[str]:
        """End them with SIGTERM; return what was wrong."""
        codes = [process.end() for process in self._processes()]
        told = "".join(process.stderr for process in self._processes())
        return [f"exit codes {codes}: {told[-2000:]}"] if any(codes) or "Traceback" in told else []


class Clients:
    """Ask until they are told to end.

    Args:
        server: The server that is asked.
        texts: The answer to each request.
    """

    def __init__(self, server: ServeProcess, texts: dict[int, str]) -> None:
        self.seen = Seen()
        self._server, self._texts = server, texts
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(NUM_CLIENTS)
        self._clients = [self._pool.submit(self._run, number) for number in range(NUM_CLIENTS)]

    def end(self) -> None:
        """Have each end its request."""
        self._ended.set()
        for client in self._clients:
            client.result()
        self._pool.shutdown()

    def _run(self, number: int) -> None:
        draw = random.Random(number)
        with httpx2.Client(base_url=self._server.address, timeout=TIMEOUT) as client:
            while not self._ended.is_set():
                seed = draw.choice(list(self._texts))
                try:
                    one = ask(client, seed)
                except Exception as error:
                    self.seen.wrong.append(f"request {seed}: {error!r}")
                    continue
                self.seen.endings.append((time.monotonic(), one))
                if one.ending == "whole" and one.text != self._texts[seed]:
                    self.seen.wrong.append(f"request {seed}: another text")
                self._ended.wait(one.retry_seconds)


def run(
    kind: str, num_kills: int, flags: tuple[str, ...] = (), period: float = PERIOD_SECONDS
) -> dict[str, Any]:
    """Kill engines of a kind under load; return what was seen; ``wrong`` must be empty."""
    kills, answered, complete = list[float](), list[float](), list[float]()
    with Site(kind, flags) as site:
        server = site.server
        server.wait_ready()
        num_engines = len(site.engines())
        children = site.children()
        with httpx2.Client(base_url=server.address, timeout=TIMEOUT) as client:
            texts = {seed: ask(client, seed).text for seed in range(12)}
            clients = Clients(server, texts)
            try:
                for number in range(num_kills):
                    time.sleep(0.5 + 0.1 * (number % 5))
                    kills.append(time.monotonic())
                    answered.append(kill(site, client, number))
                    complete.append(wait_for_all(site, num_engines, kills[-1]))
                    time.sleep(max(kills[-1] + period - time.monotonic(), 0.0))
            finally:
                clients.end()
            seen = clients.seen
            children += site.children()
            for seed, text in texts.items():
                if ask(client, seed) != Ended("whole", text):
                    seen.wrong.append(f"request {seed} after all kills")
        seen.wrong += site.end()
        seen.wrong += [f"left: {child}" for child in children if child.is_running()]
    if max(answered, default=0.0) > MOST_SECONDS:
        seen.wrong.append(f"healthy after {max(answered):.1f} s")
    return {
        "kills": len(kills),
        "endings": dict(Counter(one.ending for _, one in seen.endings)),
        **seen.costs(kills),
        "healthy_again_seconds": results.summary(answered) if answered else {},
        "all_again_seconds": results.summary(complete) if complete else {},
        "wrong": seen.wrong,
    }


def kill(site: Site, client: httpx2.Client, number: int) -> float:
    """Kill one engine, once there is one; return the seconds until an answer."""
    end = time.monotonic() + TIMEOUT
    while not site.kill(number):
        assert time.monotonic() < end, "it is started again"
        time.sleep(0.05)
    start = time.monotonic()
    while client.get("/health").status_code != 200 or ask(client, 0).ending != "whole":
        assert time.monotonic() - start < TIMEOUT, "it answers again"
        time.sleep(0.05)
    return time.monotonic() - start


def wait_for_all(site: Site, count: int, start: float) -> float:
    """Wait until as many engines run as at the start; return the seconds since a kill."""
    while len(site.engines()) < count:
        assert time.monotonic() - start < TIMEOUT, "all are started again"
        time.sleep(0.1)
    return time.monotonic() - start


def main() -> None:
    """Kill all kinds, show and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=50, help="of each kind")
    parser.add_argument(
        "--period", type=float, default=PERIOD_SECONDS, help="seconds from kill to kill, at least"
    )
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--name", default="replica_kills")
    arguments = parser.parse_args()
    found = {kind: run(kind, arguments.kills, period=arguments.period) for kind in arguments.kinds}
    for kind, outcome in found.items():
        print(kind, json.dumps(outcome))
    print(f"written: {results.write(arguments.name, found).name}")
    raise SystemExit(any(outcome["wrong"] for outcome in found.values()))


if __name__ == "__main__":
    main()
