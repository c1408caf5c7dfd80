"""Runs Quire on the comparison's commands; see ``benchmarks/peers/protocol.py``.

Times cover the whole engine step: scheduling, execution and greedy sampling.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from benchmarks.engine_steps import decode_seconds, prefill_seconds
from quire import LLM


def main() -> None:
    setup = json.loads(sys.argv[1])
    llm = LLM(
        setup["path"],
        threads=setup["threads"],
        max_model_len=setup["context"],
        max_num_seqs=setup["max_seqs"],
        max_num_batched_tokens=512,
        kv_cache_memory_bytes=1 << 30,
        enable_prefix_caching=False,
    )
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        if command["kind"] == "prefill":
            answer: Any = prefill_seconds(llm, command["tokens"])
        else:
            answer = decode_seconds(llm, command["batch"], command["depth"], command["steps"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
