"""``scripts/chaos``: thousands of clients that stay, leave or set deadlines; nothing is left over.

A server of quire-tiny is started with few blocks and a short queue, so that requests wait, are
preempted and refused. Afterwards no block may be in use, the pool must be whole, and every
sequence that was taken must have ended once.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import Any

import httpx2
from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.robustness import random_clients, server_state
from tools.serve_process import ServeProcess

#: Small enough that requests wait, are preempted, evict each other's prefixes and are refused.
TIGHT = (
    *("--max-model-len", "512", "--num-gpu-blocks-override", "40", "--max-num-seqs", "8"),
    *("--max-num-batched-tokens", "64", "--scheduling-policy", "priority"),
    *("--max-num-queued-reqs", "19"),
    *("--memory", "128MiB", "--disable-uvicorn-access-log"),
)


def run(url: str, load: random_clients.Load) -> dict[str, Any]:
    """Put ``load`` on an idle server; return both sides' views; ``wrong`` must be empty."""
    with httpx2.Client(base_url=url, timeout=60) as client:
        before = server_state.counters(client)
        started = time.perf_counter()
        report = asyncio.run(random_clients.run(url, load))
        seconds = time.perf_counter() - started
        server_state.wait_until_idle(client)
        after = server_state.counters(client)
        blocks_used, integrity = server_state.cache_state(client)
    delta = {name: value - before.get(name, 0.0) for name, value in after.items()}
    wrong = list(report.wrong)
    added, ended = delta["num_sequences_added"], server_state.num_ended(delta)
    if blocks_used:
        wrong.append(f"{blocks_used} blocks in use with nothing to do")
    if integrity != "ok":
        wrong.append(f"integrity: {integrity}")
    if added != ended:
        wrong.append(f"{added:g} sequences were taken, {ended:g} ended")
    if not report.num_begun <= added <= report.num_possible:
        wrong.append(
            f"{added:g} sequences were taken, of {report.num_begun} to {report.num_possible} asked"
        )
    finished = report.reasons["stop"] + report.reasons["length"]
    counted = delta["request_success/stop"] + delta["request_success/length"]
    if finished > counted:
        wrong.append(f"clients saw {finished} finished sequences, the engine {counted:g}")
    if delta["engine_restarts"]:
        wrong.append("the engine was restarted")
    return {
        "requests": load.num_requests,
        "seconds": round(seconds, 1),
        "tempers": dict(report.tempers),
        "statuses": {str(status): count for status, count in sorted(report.statuses.items())},
        "left": report.num_left,
        "finish_reasons": dict(report.reasons),
        "sequences_taken": added,
        "sequences_ended": {
            name.partition("/")[2]: value
            for name, value in delta.items()
            if name.startswith("request_success/")
        },
        "preemptions": delta["num_preemptions"],
        "blocks_in_use_afterwards": blocks_used,
        "integrity": integrity,
        "wrong": wrong,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=28)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--speculative-config", help="of the server; default: no speculation")
    parser.add_argument("--no-result", action="store_true", help="write no result file")
    arguments = parser.parse_args()
    load = random_clients.Load(arguments.requests, arguments.concurrency, seed=arguments.seed)
    config = arguments.speculative_config
    settings = [*TIGHT, *([] if config is None else ["--speculative-config", config])]
    with ServeProcess(settings) as server:
        outcome = run(server.wait_ready(), load)
        outcome["exit_code"] = server.end()
    table = Table("what", "value")
    for name, value in outcome.items():
        table.add_row(name, str(value) if name != "wrong" else "\n".join(map(str, value[:10])))
    Console().print(table)
    if not arguments.no_result:
        name = "chaos" if config is None else "chaos_speculation"
        print(f"written: {results.write(name, outcome, server=' '.join(settings)).name}")
    sys.exit(1 if outcome["wrong"] or outcome["exit_code"] else 0)


if __name__ == "__main__":
    main()
