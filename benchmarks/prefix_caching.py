"""What prefix caching costs prompts that share nothing: 512 tokens of SmolLM2-135M's shape.

    scripts/bench prefix_caching [MODEL.gguf]

Blocks whose content can still be found are given out again last, so until every block was used
once each prompt writes memory that was never touched: the operating system clears it then, and a
virtual machine's host may have to hand it out first. ``fresh`` is that state and ``full`` the one
after it, of equal engines; ``reset`` forgets its prefix cache before each prompt; ``off`` has none
and writes the same blocks every time.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.growth.growth import make_model
from quire import LLM, SamplingParams
from quire.system.machine import read_machine

TOKENS = 512
BLOCKS = TOKENS // 16
_numbers = itertools.count()


def prompt_seconds(llm: LLM) -> float:
    """Return the seconds of a prompt that shares nothing with those before."""
    number = next(_numbers)
    ids = [number % 200, number // 200 % 200, *((7 * i) % 200 for i in range(TOKENS - 2))]
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    llm.engine.add_request(f"prompt-{number}", ids, params)
    start = time.perf_counter()
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
    return time.perf_counter() - start


def measure(path: Path, threads: int, rounds: int) -> dict[str, Any]:
    """Return each state's times and, against ``off`` in the same round, its ratio."""

    def engine(num_prompts: int, caching: bool) -> LLM:
        return LLM(
            str(path), threads=threads, max_model_len=2 * TOKENS, max_num_seqs=4,
            num_gpu_blocks_override=num_prompts * BLOCKS + 2, enable_prefix_caching=caching,
        )  # fmt: skip

    most = rounds + 2
    engines = {
        "off": engine(most, False),
        "full": engine(most, True),
        "fresh": engine(most, True),
        "reset": engine(most, True),
    }
    for name, llm in engines.items():
        for _ in range(most if name == "full" else 1):
            prompt_seconds(llm)
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, llm in engines.items():
            if name == "reset":
                llm.engine.reset_prefix_cache()
            seconds[name].append(prompt_seconds(llm))
    return {
        name: {
            "seconds": results.summary(taken),
            "tokens_per_second": round(TOKENS / median(taken), 1),
            "of_off": results.summary([a / b for a, b in zip(taken, seconds["off"], strict=True)]),
        }
        for name, taken in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path, help="GGUF file")
    parser.add_argument("--threads", type=int, default=read_machine().num_cores)
    parser.add_argument("--rounds", type=int, default=31)
    arguments = parser.parse_args()
    path = arguments.model or make_model()
    found = measure(path, arguments.threads, arguments.rounds)
    table = Table("prefix caching", "ms", "tok/s", "time / off")
    for name, row in found.items():
        table.add_row(
            name, f"{row['seconds']['median'] * 1e3:.1f}", f"{row['tokens_per_second']:,.0f}",
            f"{row['of_off']['median']:.3f}",
        )  # fmt: skip
    Console().print(table)
    name = results.per_processor("prefix_caching")
    print(results.write(name, found, model=path.stem, threads=arguments.threads))


if __name__ == "__main__":
    main()
