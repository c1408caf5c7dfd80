"""The same requests with speculation and without, in turn, by load; not how it is shown."""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quire.bench.latency_metrics import Metrics, few_samples, measure
from quire.bench.load_client import LoadClient, Record
from quire.bench.load_run import OnDone, connected, send_jobs, warm_up
from quire.bench.proposals import Proposals, read_proposals
from quire.bench.sample_texts import Message, built_in, only_text, read_prompts
from quire.bench.spec_options import PERCENT, SpecOptions
from quire.bench.workload import BenchRequest
from quire.core.errors import ConfigError

OnPart = Callable[[str], None]
#: What distributions of a part are reported with a percentile.
REPORTED = ("e2el", "tpot")


@dataclass(frozen=True, slots=True)
class RoundPart:
    """One round's requests, sent one way."""

    records: list[Record]
    duration: float
    proposals: Proposals

    @property
    def output_throughput(self) -> float:
        """Output tokens a second of the requests that did not fail."""
        tokens = sum(r.num_output_tokens for r in self.records if r.error is None)
        return tokens / self.duration


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The measurements with one number of clients; a round has a part in both lists.

    Attributes:
        without, with_speculation: Parts in the order of rounds.
    """

    concurrency: int
    without: list[RoundPart]
    with_speculation: list[RoundPart]

    def ratios(self) -> list[float]:
        """Return how many times as fast each round was with speculation; not those that failed."""
        pairs = zip(self.with_speculation, self.without, strict=True)
        rates = [(on.output_throughput, off.output_throughput) for on, off in pairs]
        return [on / off for on, off in rates if on and off]

    def ratio(self) -> tuple[float, float, float] | None:
        """Return the median, least and largest ratio; None where no round was answered."""
        found = self.ratios()
        return (statistics.median(found), min(found), max(found)) if found else None

    def proposals(self) -> Proposals:
        """Return what was proposed in all parts with speculation."""
        return sum((part.proposals for part in self.with_speculation), Proposals())

    def compared(self) -> tuple[int, int]:
        """Return how many requests were answered both ways, and how many of these differently."""
        texts = [
            (on.text, off.text)
            for first, second in zip(self.with_speculation, self.without, strict=True)
            for on, off in zip(first.records, second.records, strict=True)
            if on.error is None and off.error is None
        ]
        return len(texts), sum(on != off for on, off in texts)


def metrics_of(parts: Sequence[RoundPart]) -> Metrics:
    """Return the metrics of the requests of all parts together."""
    records = [record for part in parts for record in part.records]
    found = measure(records, sum(part.duration for part in parts), [PERCENT], {})
    reported = {name: found.distributions[name] for name in REPORTED}
    return replace(found, warnings=few_samples(reported))


@dataclass(frozen=True, slots=True)
class SpecRun:
    """The measurements of a run, by number of clients."""

    model: str
    loads: list[LoadResult]

    @property
    def proposed(self) -> bool:
        """Whether the server proposed anything."""
        return any(load.proposals().num_drafts for load in self.loads)


async def run_spec(options: SpecOptions, on_part: OnPart, on_done: OnDone) -> SpecRun:
    """Send the load that ``options`` describe.

    Args:
        on_part: A function called with the name of each part as it begins.
        on_done: A function called with each record that is measured, as its request ends.

    Raises:
        ConfigError: The options contradict one another, no server answers, or the server has no
            speculation, or none that can be switched off.
    """
    given = options.prompts
    conversations = built_in(options.dataset) if given is None else read_prompts(Path(given))
    workload = Workload(options, conversations)
    async with connected(options) as client:
        if await read_proposals(client.pool) is None:
            raise ConfigError(
                "[bench] the server must have speculation; got no spec_decode counters at "
                "/metrics: nothing can be proposed. Start it with --speculative-config."
            )
        loads = [
            await _measure_load(client, workload, concurrency, on_part, on_done)
            for concurrency in options.numbers_of_clients()
        ]
    return SpecRun(client.model, loads)


class Workload:
    """Makes the requests of each part; both parts of a round ask the same."""

    def __init__(self, options: SpecOptions, conversations: list[list[Message]]) -> None:
        self.options = options
        self._conversations = conversations
        self._is_chat = options.backend == "openai-chat"
        self._texts = [] if self._is_chat else [only_text(item) for item in conversations]
        self._run = secrets.token_hex(4)

    def jobs(
        self, name: str, first: int, count: int, *, with_speculation: bool
    ) -> list[BenchRequest]:
        """Make ``count`` requests from the prompt ``first`` on, over and over.

        Nothing that the server keeps of one part (cached prompts, outputs to look tokens up in)
        serves another, or an earlier answer to the same prompt: they differ in ``cache_salt``.

        Args:
            name: The part's own.
        """
        options = self.options
        fields = options.fields(with_speculation=with_speculation)
        found = []
        for index in range(first, first + count):
            passes, place = divmod(index, len(self._conversations))
            own = {
                "seed": options.seed + index,
                "cache_salt": f"{self._run} {name} {with_speculation} {passes}",
                **fields,
            }
            text = "" if self._is_chat else self._texts[place]
            if self._is_chat:
                own["messages"] = self._conversations[place]
            found.append(BenchRequest(text, 0, options.output_len, fields=own))
        return found


async def _measure_load(
    client: LoadClient, workload: Workload, concurrency: int, on_part: OnPart, on_done: OnDone
) -> LoadResult:
    options = workload.options
    count = options.part_size(concurrency)
    load = LoadResult(concurrency, [], [])
    for way in (False, True):
        jobs = workload.jobs(f"{concurrency} warm-up", 0, concurrency, with_speculation=way)
        await warm_up(client, jobs, concurrency)
    for number in range(options.rounds):
        # What goes first meets a colder machine, or a warmer one: it changes every round.
        for way in (False, True) if number % 2 == 0 else (True, False):
            shown = "with" if way else "without"
            on_part(f"clients {concurrency}, round {number + 1} of {options.rounds}, {shown}")
            name = f"{concurrency} {number}"
            jobs = workload.jobs(name, number * count, count, with_speculation=way)
            part = await _measure_part(client, jobs, concurrency, on_done)
            if not way and part.proposals.num_drafts:
                raise ConfigError(
                    f"[bench] nothing must be proposed for requests with {options.without}; got "
                    f"{part.proposals.num_draft_tokens} tokens. The server does not know the "
                    "field, or others use it: see --without."
                )
            (load.with_speculation if way else load.without).append(part)
    return load


async def _measure_part(
    client: LoadClient, jobs: list[BenchRequest], concurrency: int, on_done: OnDone
) -> RoundPart:
    before = await read_proposals(client.pool) or Proposals()
    records, duration = await send_jobs(client, jobs, [0.0] * len(jobs), concurrency, on_done)
    after = await read_proposals(client.pool) or Proposals()
    return RoundPart(records, duration, after.since(before))
