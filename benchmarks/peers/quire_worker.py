"""Runs Quire on the comparison's commands; see ``benchmarks/peers/protocol.py``.

Times cover the whole engine step: scheduling, execution and greedy sampling.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.engine_steps import decode_seconds, prefill_seconds, start_decoding
from quire import LLM

BLOCK_SIZE = 16


def rss_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def load(setup: dict[str, Any]) -> LLM:
    """Load with as many KV blocks as the sequences need, and the null block."""
    many = setup["batches"] * -(-setup["batch_context"] // BLOCK_SIZE)
    single = -(-setup["context"] // BLOCK_SIZE)
    return LLM(
        setup["path"],
        threads=setup["threads"],
        max_model_len=setup["context"],
        max_num_seqs=setup["batches"],
        block_size=BLOCK_SIZE,
        num_gpu_blocks_override=max(many, single) + 1,
        enable_prefix_caching=False,
        packed_weights_cache=setup["packed_weights_cache"],
        quantization_overrides=setup["quantization_overrides"],
    )


def decode(llm: LLM, batch: int, depth: int, steps: int) -> dict[str, Any]:
    """Answer a decode command."""
    start = time.perf_counter()
    start_decoding(llm, batch, depth, steps)
    prefill = time.perf_counter() - start
    return {"prefill": prefill, "steps": decode_seconds(llm, batch, steps)}


def main() -> None:
    start = time.perf_counter()
    llm = load(json.loads(sys.argv[1]))
    loaded = time.perf_counter() - start
    prefill_seconds(llm, 1)
    ready = time.perf_counter() - start
    found = {"load_seconds": loaded, "ready_seconds": ready, "rss_bytes": rss_bytes()}
    print(json.dumps(found), flush=True)
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        kind = command.pop("kind")
        if kind == "prefill":
            answer: Any = prefill_seconds(llm, command["tokens"])
        else:
            answer = decode(llm, **command)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
