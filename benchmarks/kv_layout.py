"""How much of the allocated KV memory holds tokens in a mixed load, paged and static.

Runs requests of log-uniform lengths (20 to 2,000 tokens in all) through quire-tiny and reads the
block tables after every step; the static figures reserve the context length per running request.
"""

from __future__ import annotations

import argparse
import math
import random

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import results
from quire import LLM, SamplingParams
from quire.engine.kv_report import SlotUse

CONTEXT = 2048


def lengths(num_requests: int, seed: int) -> list[tuple[int, int]]:
    """Return (prompt, output) tokens of each request; their sum is log-uniform in 20..2000."""
    draw = random.Random(seed)
    sizes = []
    for _ in range(num_requests):
        total = round(math.exp(draw.uniform(math.log(20), math.log(2000))))
        output = max(1, min(total // 4, 64))
        sizes.append((total - output, output))
    return sizes


def run(num_requests: int, max_num_seqs: int, seed: int) -> tuple[SlotUse, SlotUse, int]:
    """Return slots summed over all steps, paged as measured and static, and the steps."""
    llm = LLM(
        max_model_len=CONTEXT,
        max_num_seqs=max_num_seqs,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=1 << 30,
    )
    for index, (prompt, output) in enumerate(lengths(num_requests, seed)):
        params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True, detokenize=False)
        ids = [(index + position) % 256 for position in range(prompt)]
        llm.engine.add_request(str(index), ids, params)
    reserved = used = static = steps = 0
    scheduler = llm.engine.engine.scheduler
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
        use = scheduler.kv.slot_use()
        reserved += use.reserved
        used += use.used
        static += len(scheduler.running) * CONTEXT
        steps += 1
    llm.shutdown()
    return SlotUse(reserved, used), SlotUse(static, used), steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    table = Table("seed", "steps", "paged: used of allocated", "static", "memory ratio")
    rows = []
    for seed in track(range(arguments.seeds), "mixed loads"):
        paged, static, steps = run(arguments.requests, arguments.max_num_seqs, seed)
        rows.append(
            {
                "seed": seed,
                "steps": steps,
                "paged_utilization": paged.utilization,
                "static_utilization": static.utilization,
                "static_over_paged": static.reserved / paged.reserved,
            }
        )
        table.add_row(
            str(seed),
            str(steps),
            f"{paged.utilization:.1%}",
            f"{static.utilization:.1%}",
            f"{static.reserved / paged.reserved:.1f}x",
        )
    Console().print(table)
    path = results.write("kv_layout", rows, model="quire-tiny", block_size=16)
    print(f"written: {path.name}")


if __name__ == "__main__":
    main()
