"""Time to the first token of short prompts next to a long one, on a real engine.

Short prompts of 20 tokens arrive at random, alone and while long prompts are computed one after the
other, without and with a stream that makes tokens all the time. Stated are P99 over all short
prompts that came meanwhile, against P99 of all alone, and the long prompt's own first token against
its first token without the short ones.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import results
from quire import AsyncLLM, SamplingParams
from quire.core.sampling_params import RequestOutputKind

NUM_SHORT_TOKENS, NUM_OUTPUT_TOKENS = 20, 8
TOKEN_IDS = (300, 2000)


@dataclass
class Seen:
    """Seconds that clients of one case saw."""

    short: list[float] = field(default_factory=list)
    long: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)


class Load:
    """Sends requests to an engine.

    Args:
        llm: The engine.
        short_rate: Short prompts a second.
        num_long_tokens: Tokens of a long prompt.
        seed: Number that chooses arrivals and tokens.
    """

    def __init__(
        self, llm: AsyncLLM, short_rate: float, num_long_tokens: int, seed: int = 1
    ) -> None:
        self._llm = llm
        self._short_rate = short_rate
        self._num_long_tokens = num_long_tokens
        self._random = random.Random(seed)
        self._number = 0

    async def run(self, *, num_short: int = 0, num_long: int = 0, stream: bool = False) -> Seen:
        """Serve long prompts one after the other, or else ``num_short`` short ones."""
        seen = Seen()
        tasks = [asyncio.create_task(self._stream(seen))] if stream else []
        if stream:
            while not seen.gaps and not tasks[0].done():
                await asyncio.sleep(0.01)
        end = asyncio.Event()
        arrivals = asyncio.create_task(self._short(seen, num_short, bool(num_long), end))
        for _ in range(num_long):
            await asyncio.sleep(0.2)
            seen.long.append((await self._ask(self._num_long_tokens, 1))[0])
        end.set()
        await arrivals
        assert not any(task.done() for task in tasks), "the stream lives through it all"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return seen

    async def _short(self, seen: Seen, number: int, until_end: bool, end: asyncio.Event) -> None:
        asked = []
        while number and (not end.is_set() if until_end else len(asked) < number):
            asked.append(asyncio.create_task(self._ask(NUM_SHORT_TOKENS, NUM_OUTPUT_TOKENS)))
            await asyncio.sleep(self._random.expovariate(self._short_rate))
        seen.short += [times[0] for times in await asyncio.gather(*asked)]

    async def _stream(self, seen: Seen) -> None:
        while True:  # one after the other, as long as the context allows
            await self._ask(4, min(4000, self._llm.max_model_len - 4), seen.gaps)

    async def _ask(
        self, num_tokens: int, max_tokens: int, gaps: list[float] | None = None
    ) -> list[float]:
        """Return the seconds to each token."""
        self._number += 1
        prompt = self._random.choices(range(*TOKEN_IDS), k=num_tokens)
        params = SamplingParams(
            temperature=0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        times: list[float] = []
        begin = last = time.perf_counter()
        outputs = self._llm.generate({"prompt_token_ids": prompt}, params, f"r{self._number}")
        async with aclosing(outputs):
            async for _ in outputs:
                now = time.perf_counter()
                times.append(now - begin)
                if gaps is not None and len(times) > 1:
                    gaps.append(now - last)
                last = now
        return times


def p99(seconds: list[float]) -> float:
    """Return the 99th percentile; of fewer than 100 the greatest."""
    return sorted(seconds)[int(0.99 * len(seconds))]


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return by case what was seen, without and with a stream."""
    llm = AsyncLLM(
        arguments.model,
        enable_prefix_caching=False,
        memory=arguments.memory,
        mixed_prefill_tokens=arguments.mixed_prefill_tokens,
    )
    load = Load(llm, arguments.rate, arguments.tokens)
    rows: dict[str, Any] = {}
    await load.run(num_short=3, stream=True)
    for stream in (False, True):
        alone = await load.run(num_short=arguments.short, stream=stream)
        undisturbed = await load.run(num_long=arguments.long, stream=stream)
        both = await load.run(num_short=1, num_long=arguments.long, stream=stream)
        long_alone, long = results.summary(undisturbed.long), results.summary(both.long)
        rows["with a stream" if stream else "without"] = {
            "short_alone": results.summary(alone.short) | {"p99": p99(alone.short)},
            "short_next_to_long": results.summary(both.short) | {"p99": p99(both.short)},
            "short_ratio": p99(both.short) / p99(alone.short),
            "long_alone": long_alone,
            "long_next_to_short": long,
            "long_ratio": long["median"] / long_alone["median"],
            "stream_gap_p99": p99(both.gaps) if stream else None,
            "stream_gap_p99_long_alone": p99(undisturbed.gaps) if stream else None,
        }
    await llm.shutdown()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--tokens", type=int, default=8000, help="of a long prompt")
    parser.add_argument("--long", type=int, default=6, help="long prompts a case")
    parser.add_argument("--short", type=int, default=120, help="short prompts of the case alone")
    parser.add_argument("--rate", type=float, default=1.0, help="short prompts a second")
    parser.add_argument("--mixed-prefill-tokens", type=int)
    parser.add_argument("--no-result", action="store_true", help="write no result file")
    arguments = parser.parse_args()
    rows = asyncio.run(measure(arguments))
    table = Table("case", "short alone p99", "next to long p99", "ratio", "long alone", "ratio")
    for name, row in rows.items():
        table.add_row(
            name,
            f"{row['short_alone']['p99'] * 1e3:.0f} ms",
            f"{row['short_next_to_long']['p99'] * 1e3:.0f} ms",
            f"{row['short_ratio']:.2f}",
            f"{row['long_alone']['median']:.2f} s",
            f"{row['long_ratio']:.2f}",
        )
    Console().print(table)
    if not arguments.no_result:
        settings = {k: v for k, v in vars(arguments).items() if k != "no_result"}
        print(f"written: {results.write('long_prompts', rows, settings=settings).name}")


if __name__ == "__main__":
    main()
