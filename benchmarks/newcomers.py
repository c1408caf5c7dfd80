"""First tokens of requests that arrive while a long prompt is computed, by how parts are bounded.

    scripts/bench newcomers [--model smollm2] [--rounds 9]

A part of a long prompt is given up when a request arrives, or else it is bounded by time alone: a
step with a part takes a few times as long as one without, whatever requests arrive. One engine
computes the same arrivals in each of the ways, in turn, round after round. ``seconds_worse`` is a
round's mean time to the first token less that of the same round where parts are given up;
``least_seconds_worse`` is the median of the best of the bounds.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.long_prompts import Load, p99
from quire import AsyncLLM
from quire.core.step import SchedulerOutput
from quire.engine.request import Request
from quire.engine.scheduling import chunk_size
from quire.engine.scheduling.abortable_chunks import AbortableChunks

GIVEN_UP = "given up"
#: How many times as long a step with a part may take, where no part is given up.
BOUNDS = {"1.5 steps": 1.5, "2 steps": 2.0, "3.1 steps": 3.1}


class SureChunks(AbortableChunks):
    """Parts that are all computed to their ends, so their size is that of sure ones."""

    @property
    def owes(self) -> bool:
        """Whether the next part is computed to its end: each is."""
        return True

    def choose(self, plan: SchedulerOutput, requests: Mapping[str, Request]) -> frozenset[str]:
        """Return no requests."""
        return frozenset()


class Ways:
    """Switches an idle engine between the ways.

    Args:
        llm: The engine.
    """

    def __init__(self, llm: AsyncLLM) -> None:
        self._scheduler = llm._engine.engine.scheduler
        self._given_up = self._scheduler._abortable, chunk_size.SURE_FACTOR
        self.names = [GIVEN_UP, *BOUNDS]

    @property
    def num_dropped(self) -> int:
        """Number of parts that were given up so far."""
        return self._scheduler.stats.num_dropped_parts

    def take(self, name: str) -> None:
        """Divide long prompts in a way from the next step on."""
        chunks, factor = self._given_up
        if name in BOUNDS:
            chunks, factor = SureChunks(), BOUNDS[name]
        self._scheduler._abortable, chunk_size.SURE_FACTOR = chunks, factor
        self._scheduler.prefill.chunk_size.is_sure = chunks.owes


@dataclass
class Served:
    """Seconds of one way's requests.

    Attributes:
        newcomers: Time to the first token of each short request, by rounds.
        long: Time to the first token of long prompts, by rounds.
        num_dropped: Number of parts that were given up.
    """

    newcomers: list[list[float]] = field(default_factory=list)
    long: list[float] = field(default_factory=list)
    num_dropped: int = 0

    @property
    def all_newcomers(self) -> list[float]:
        """Times of all rounds."""
        return [seconds for round_ in self.newcomers for seconds in round_]


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return by case and way what was seen."""
    llm = AsyncLLM(arguments.model, enable_prefix_caching=False, memory=arguments.memory)
    ways, rows = Ways(llm), dict[str, Any]()
    for stream in (False, True):
        served = {name: Served() for name in ways.names}
        for number in range(1 + arguments.rounds):
            shift = number % len(ways.names)
            for name in ways.names[shift:] + ways.names[:shift]:
                ways.take(name)
                load = Load(llm, arguments.rate, arguments.tokens, seed=number)
                before = ways.num_dropped
                seen = await load.run(num_short=1, num_long=arguments.long, stream=stream)
                if number:  # the first round warms up
                    # The first request arrives before the long prompt does.
                    served[name].newcomers.append(seen.short[1:])
                    served[name].long.append(fmean(seen.long))
                    served[name].num_dropped += ways.num_dropped - before
        rows["with a stream" if stream else "without a stream"] = compare(served)
    await llm.shutdown()
    return rows


def compare(served: Mapping[str, Served]) -> dict[str, Any]:
    """Return a row for each way, those with bounds next to the one that gives parts up."""
    if not all(one.all_newcomers for one in served.values()):
        raise SystemExit("[newcomers] no request arrived meanwhile. Raise --tokens or --rate.")
    base, rows = served[GIVEN_UP], dict[str, Any]()
    for name, one in served.items():
        newcomers = one.all_newcomers
        rows[name] = {
            "newcomer": results.summary(newcomers) | {"p99": p99(newcomers)},
            "long": results.summary(one.long),
            "num_dropped_parts": one.num_dropped,
        }
        if one is base:
            continue
        worse = [
            fmean(own) - fmean(other)
            for own, other in zip(one.newcomers, base.newcomers, strict=True)
            if own and other
        ]
        rows[name]["seconds_worse"] = results.summary(worse)
        slower = [own / other for own, other in zip(one.long, base.long, strict=True)]
        rows[name]["long_ratio"] = results.summary(slower)
    least = min(rows[name]["seconds_worse"]["median"] for name in BOUNDS)
    return rows | {"least_seconds_worse": least}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--tokens", type=int, default=8000, help="of a long prompt")
    parser.add_argument("--long", type=int, default=1, help="long prompts a round and way")
    parser.add_argument("--rate", type=float, default=1.0, help="short prompts a second")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-result", action="store_true", help="write no result file")
    arguments = parser.parse_args()
    rows = asyncio.run(measure(arguments))
    table = Table("case", "parts", "newcomer", "p99", "worse", "long", "ratio", "dropped")
    for case, ways in rows.items():
        for name in (GIVEN_UP, *BOUNDS):
            row = ways[name]
            is_base = name == GIVEN_UP
            table.add_row(
                case,
                name,
                f"{row['newcomer']['median'] * 1e3:.0f} ms",
                f"{row['newcomer']['p99'] * 1e3:.0f} ms",
                "" if is_base else f"{row['seconds_worse']['median'] * 1e3:+.1f} ms",
                f"{row['long']['median']:.2f} s",
                "" if is_base else f"{row['long_ratio']['median']:.2f}",
                str(row["num_dropped_parts"]),
            )
    Console().print(table)
    if not arguments.no_result:
        settings = {k: v for k, v in vars(arguments).items() if k != "no_result"}
        print(f"written: {results.write('newcomers', rows, settings=settings).name}")


if __name__ == "__main__":
    main()
