"""What each of the engine's ways of working costs or saves, as ratios on quire-tiny.

- a KV cache against recomputing everything;
- prefill against decode, and decode at batch 4 against batch 1;
- prefix caching on prompts that share nothing and on a shared prefix;
- time to first token of a prompt in one step against in chunks.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import results, wanted
from benchmarks.engine_steps import prompt
from quire import LLM, SamplingParams

#: Small enough that the warm-up touches every page of it.
KV_BYTES = 40 << 20


def greedy(num_tokens: int) -> SamplingParams:
    """Return settings for exactly ``num_tokens`` output tokens."""
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)


def engine(**keywords: Any) -> LLM:
    """Load quire-tiny."""
    return LLM(kv_cache_memory_bytes=KV_BYTES, **keywords)


class Fresh:
    """Prompts that no earlier call has used, so that only wanted prefixes are cached."""

    def __init__(self) -> None:
        self.count = 0

    def prompts(self, number: int, num_tokens: int) -> list[list[int]]:
        """Return ``number`` prompts that differ from the first token on."""
        self.count += number
        return [
            [i % 200, i // 200, *prompt(num_tokens - 2, i)]
            for i in range(self.count - number, self.count)
        ]


def runs(llm: LLM, make: Callable[[], list[list[int]]], num_tokens: int) -> Callable[[], None]:
    """Return a case that completes new prompts."""
    return lambda: llm.generate(make(), greedy(num_tokens), use_tqdm=False) and None


def measure() -> dict[str, dict[str, Any]]:
    """Return per question its ratio, both medians and their spread."""
    fresh = Fresh()
    plain = engine(enable_prefix_caching=False)
    recompute = engine(use_cache=False)
    shared = engine()
    chunked = engine(enable_prefix_caching=False, max_num_batched_tokens=256)
    document = prompt(1500, 7)
    questions = {
        "no cache / cache, 256 tokens": (
            runs(recompute, lambda: fresh.prompts(1, 4), 256),
            runs(plain, lambda: fresh.prompts(1, 4), 256),
        ),
        "decode 512 tokens / prefill 512 tokens": (
            runs(plain, lambda: fresh.prompts(1, 4), 512),
            runs(plain, lambda: fresh.prompts(1, 512), 1),
        ),
        "batch 4 / batch 1, 128 tokens each": (
            runs(plain, lambda: fresh.prompts(4, 4), 128),
            runs(plain, lambda: fresh.prompts(1, 4), 128),
        ),
        "prefix caching off / on, unique prompts": (
            runs(plain, lambda: fresh.prompts(16, 128), 32),
            runs(shared, lambda: fresh.prompts(16, 128), 32),
        ),
        "prefix caching off / on, 1,500 shared tokens": (
            runs(plain, lambda: [document + ids for ids in fresh.prompts(8, 16)], 4),
            runs(shared, lambda: [document + ids for ids in fresh.prompts(8, 16)], 4),
        ),
        "first token chunked by 256 / whole, 2,000 tokens": (
            runs(chunked, lambda: fresh.prompts(1, 2000), 1),
            runs(plain, lambda: fresh.prompts(1, 2000), 1),
        ),
    }
    rows = {}
    for name, (above, below) in questions.items():
        timed = results.interleave({"above": above, "below": below}, warmup=6, repeats=7)
        ratio = timed["above"]["median"] / timed["below"]["median"]
        rows[name] = {"ratio": ratio, **timed}
    return rows


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    start = time.perf_counter()
    rows = measure()
    table = Table("time of / time of", "ratio", "wanted")
    rules = wanted.claim("engine_modes")["wanted"]
    for name, row in rows.items():
        rule = rules[wanted.ARROW.join(("results", name, "ratio"))]
        table.add_row(name, f"{row['ratio']:.2f}", wanted.phrase(rule))
    Console().print(table)
    path = results.write("engine_modes", rows, model="quire-tiny")
    print(f"written: {path.name} after {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
