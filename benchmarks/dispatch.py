"""Which engine gets a request: prefix hits, load and the dispatcher's cost; in virtual time.

    scripts/bench dispatch

Engines of the simulation have what decides here: steps whose time grows with their tokens, a prefix
cache of limited size that forgets what was used least recently, and no more. Requests are questions
on documents: each client asks some on one, with pauses, then begins with another; an engine can
keep a tenth more documents than are its share. Compared are the dispatcher of
``--data-parallel-size``, a random engine, and turns.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import random
import statistics
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import results
from quire.llm.replicas.dispatcher import Assignment, Dispatcher, RequestLoad
from quire.llm.replicas.pools import PromptPools
from quire.llm.replicas.prefix_index import block_names

BLOCK_SIZE, STEP_TOKENS = 16, 512
#: Of a step: its start, and each token of it.
START_SECONDS, TOKEN_SECONDS = 0.004, 0.00002
#: Clients for each engine; how many of their documents it can keep; questions on each.
DOCUMENTS, ROOM, QUESTIONS = 24, 1.1, 8
PREFIX_TOKENS, OWN_TOKENS, OUTPUT_TOKENS = 512, 48, 24
POLICIES = ("prefix", "random", "turns")


@dataclass(slots=True)
class Request:
    """One of the load.

    Attributes:
        arrival: In virtual seconds.
        prompt: Its tokens.
        num_outputs: Tokens that it gets.
    """

    arrival: float
    prompt: Sequence[int]
    num_outputs: int
    names: list[int] = field(default_factory=list)
    to_compute: int = 0
    left: int = 0
    first_token: float = 0.0
    assignment: Assignment | None = None


class VirtualEngine:
    """Computes requests in virtual time: prompts in parts, first come first served, with decodes.

    Args:
        num_blocks: Of its prefix cache.
    """

    def __init__(self, num_blocks: int) -> None:
        self._cache: OrderedDict[int, None] = OrderedDict()
        self._num_blocks = num_blocks
        self._prompts: deque[Request] = deque()
        self._decodes: list[Request] = []
        self.num_hit_tokens = 0
        self.num_computed_tokens = 0

    @property
    def has_work(self) -> bool:
        return bool(self._prompts or self._decodes)

    def add(self, request: Request) -> None:
        """Queue a request, of whose prompt only what is not cached is computed."""
        depth = 0
        while depth < len(request.names) and request.names[depth] in self._cache:
            depth += 1
        self.num_hit_tokens += depth * BLOCK_SIZE
        request.to_compute = len(request.prompt) - depth * BLOCK_SIZE
        request.left = request.num_outputs
        self._prompts.append(request)

    def step(self) -> tuple[float, list[Request], list[Request]]:
        """Compute one step; return its seconds, whose first token came, and who has ended."""
        budget, first = STEP_TOKENS, []
        ended = []
        for request in self._decodes:
            request.left -= 1
        ended = [request for request in self._decodes if not request.left]
        budget -= len(self._decodes)
        self._decodes = [request for request in self._decodes if request.left]
        while self._prompts and budget > 0:
            request = self._prompts[0]
            part = min(budget, request.to_compute)
            request.to_compute -= part
            budget -= part
            if request.to_compute:
                break
            self._prompts.popleft()
            self._remember(request.names)
            request.left -= 1
            first.append(request)
            (self._decodes if request.left else ended).append(request)
        num_tokens = STEP_TOKENS - budget
        self.num_computed_tokens += num_tokens
        return START_SECONDS + num_tokens * TOKEN_SECONDS, first, ended

    def _remember(self, names: Sequence[int]) -> None:
        for name in reversed(names):
            self._cache[name] = None
            self._cache.move_to_end(name)
        while len(self._cache) > self._num_blocks:
            self._cache.popitem(last=False)


@dataclass(slots=True)
class Outcome:
    """What a load came to.

    Attributes:
        hit_rate: Part of the prompts' tokens that were cached.
        most_load: Tokens that the busiest engine computed, by the mean of all.
        first_token_seconds: Of each request, sorted, by the length of its prompt.
        seconds: Until the last one ended.
    """

    hit_rate: float
    most_load: float
    first_token_seconds: list[tuple[int, float]]
    seconds: float

    def percentile(self, part: float, longest: int = 1 << 60) -> float:
        """Return a percentile of the times to the first token, of prompts up to a length."""
        found = sorted(s for length, s in self.first_token_seconds if length <= longest)
        return found[min(int(part * len(found)), len(found) - 1)]


def simulate(
    requests: Sequence[Request],
    engines: Sequence[VirtualEngine],
    choose: Callable[[Request], Assignment | int | None],
    dispatcher: Dispatcher | PromptPools | None = None,
) -> Outcome:
    """Serve a load in virtual time.

    Args:
        requests: In the order of their arrival.
        engines: By number.
        choose: Returns where a request goes.
        dispatcher: Told how far the requests are that it has assigned.
    """
    arrivals = deque(requests)
    steps: list[tuple[float, int]] = []  # the ends of the steps under way, by engine
    running: dict[int, tuple[list[Request], list[Request]]] = {}
    now = 0.0

    def start(number: int) -> None:
        seconds, first, ended = engines[number].step()
        running[number] = first, ended
        heapq.heappush(steps, (now + seconds, number))

    while arrivals or steps:
        if arrivals and (not steps or arrivals[0].arrival <= steps[0][0]):
            request = arrivals.popleft()
            now = request.arrival
            chosen = choose(request)
            assert chosen is not None, "an engine serves"
            number = chosen
            if isinstance(chosen, Assignment):
                request.assignment, number = chosen, chosen.engine
            assert isinstance(number, int)
            engines[number].add(request)
            if number not in running:
                start(number)
            continue
        now, number = heapq.heappop(steps)
        first, ended = running.pop(number)
        for request in first:
            request.first_token = now - request.arrival
            if dispatcher is not None and request.assignment is not None:
                dispatcher.answered(request.assignment)
        for request in ended:
            if dispatcher is not None and request.assignment is not None:
                dispatcher.ended(request.assignment, request.num_outputs)
        if engines[number].has_work:
            start(number)
    computed = [engine.num_computed_tokens for engine in engines]
    return Outcome(
        sum(engine.num_hit_tokens for engine in engines) / sum(len(r.prompt) for r in requests),
        max(computed) / statistics.mean(computed),
        [(len(request.prompt), request.first_token) for request in requests],
        now,
    )


def shared_prefixes(num_engines: int, per_engine: int, load: float, seed: int = 0) -> list[Request]:
    """Return a load of prompts with shared prefixes.

    Args:
        num_engines, per_engine: Engines, and requests for each.
        load: Of what the engines can do without any hits, 0 to 1 and more.
        seed: Of the draws.
    """
    draw = random.Random(seed)
    num_open = DOCUMENTS * num_engines
    work = PREFIX_TOKENS + OWN_TOKENS
    each = work * TOKEN_SECONDS + work / STEP_TOKENS * START_SECONDS + OUTPUT_TOKENS * TOKEN_SECONDS
    between = DOCUMENTS * each / load  # two questions of a client

    def document() -> list[int]:
        return [draw.randrange(50_000) for _ in range(PREFIX_TOKENS)]

    clients = [(between * draw.random(), i, draw.randint(1, QUESTIONS)) for i in range(num_open)]
    heapq.heapify(clients)
    documents, made = [document() for _ in clients], []
    for _ in range(num_engines * per_engine):
        now, index, left = clients[0]
        prompt = [*documents[index], *(draw.randrange(50_000) for _ in range(OWN_TOKENS))]
        made.append(Request(now, prompt, draw.randint(1, 2 * OUTPUT_TOKENS)))
        if left == 1:
            documents[index], left = document(), QUESTIONS + 1
        heapq.heapreplace(clients, (now + between * draw.uniform(0.5, 1.5), index, left - 1))
    return made


def serve(requests: list[Request], num_engines: int, policy: str, seed: int = 0) -> Outcome:
    """Serve a load by one of :data:`POLICIES`."""
    num_blocks = int(ROOM * DOCUMENTS * (PREFIX_TOKENS + OWN_TOKENS) / BLOCK_SIZE)
    engines = [VirtualEngine(num_blocks) for _ in range(num_engines)]
    dispatcher = Dispatcher(dict.fromkeys(range(num_engines), num_blocks), BLOCK_SIZE, STEP_TOKENS)
    draw, turn = random.Random(seed), 0
    for request in requests:
        request.names = block_names(request.prompt, BLOCK_SIZE)

    def choose(request: Request) -> Assignment | int | None:
        nonlocal turn
        if policy == "prefix":
            return dispatcher.choose(RequestLoad(request.names, len(request.prompt), None))
        turn += 1
        return draw.randrange(num_engines) if policy == "random" else turn % num_engines

    return simulate(requests, engines, choose, dispatcher)


def cost(num_engines: int, num_requests: int = 4000, *, seed: int = 0) -> dict[str, float]:
    """Return the CPU seconds that the dispatcher takes for a request, its naming of blocks apart.

    Each engine has four requests at any time.
    """
    draw = random.Random(seed)
    dispatcher = Dispatcher(dict.fromkeys(range(num_engines), 4096), BLOCK_SIZE, STEP_TOKENS)
    tokens = [draw.randrange(50_000) for _ in range(PREFIX_TOKENS + OWN_TOKENS)]
    started = time.thread_time()
    for _ in range(200):
        names = block_names(tokens, BLOCK_SIZE)
    naming = (time.thread_time() - started) / 200
    num_shared = PREFIX_TOKENS // BLOCK_SIZE
    shared = [[draw.getrandbits(60) for _ in range(num_shared)] for _ in range(4 * num_engines)]
    jobs = [
        RequestLoad(
            [*draw.choice(shared), *map(draw.getrandbits, [60] * (len(names) - num_shared))],
            len(tokens), 2)
        for _ in range(num_requests)
    ]  # fmt: skip
    live: deque[Assignment] = deque()
    for job in jobs:
        made = dispatcher.choose(job)
        assert made is not None, "an engine serves"
        live.append(made)
        if len(live) > 4 * num_engines:
            dispatcher.ended(live.popleft(), 2)
    gc.collect()
    started = time.thread_time()
    for job in jobs:
        made = dispatcher.choose(job)
        assert made is not None, "an engine serves"
        live.append(made)
        done = live.popleft()
        dispatcher.answered(done)
        dispatcher.ended(done, 2)
    return {"choose": (time.thread_time() - started) / num_requests, "names": naming}


def main() -> None:
    """Measure, show and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--engines", type=int, nargs="+", default=[2, 8, 100, 1000])
    parser.add_argument("--per-engine", type=int, default=64)
    parser.add_argument("--name", default="dispatch")
    arguments = parser.parse_args()
    shown = Table(
        "engines", "policy", "hit rate", "most load by mean", "TTFT p50", "p99", "µs each"
    )
    found: dict[str, Any] = {}
    for num_engines in arguments.engines:
        costs = [cost(num_engines) for _ in range(5)]
        choosing = results.summary([one["choose"] for one in costs])
        own: dict[str, Any] = {
            "choose_seconds": choosing,
            "name_seconds": results.summary([one["names"] for one in costs]),
        }
        per_engine = max(arguments.per_engine, 1200 // num_engines)
        for policy in POLICIES:
            outcome = serve(shared_prefixes(num_engines, per_engine, 0.7), num_engines, policy)
            own[policy] = {
                "hit_rate": outcome.hit_rate,
                "most_load": outcome.most_load,
                "ttft_p50": outcome.percentile(0.5),
                "ttft_p99": outcome.percentile(0.99),
                "seconds": outcome.seconds,
            }
            shown.add_row(
                *(str(num_engines), policy, f"{outcome.hit_rate:.1%}", f"{outcome.most_load:.2f}"),
                *(f"{outcome.percentile(part) * 1000:.0f} ms" for part in (0.5, 0.99)),
                f"{choosing['median'] * 1e6:.1f}" if policy == "prefix" else "",
            )
        found[str(num_engines)] = own
    Console().print(shown)
    results.write(arguments.name, found)


if __name__ == "__main__":
    main()
