"""Chats of a real model, smollm2, through both HTTP servers: ``quire serve`` and ``llama-server``.

    scripts/bench chats                        # Quire, then llama-server with 1 4 8 16 32 slots
    scripts/bench chats --slots 8 --slots 16   # some slot counts
    scripts/bench chats --show                 # print what was measured last

All chats have one long system prompt and a question each, as an assistant's users do. The servers
run in turn, alone, on the same file; in each round 32 clients send at once, then one client sends
its chats one after the other. Every answer is greedy and has the same number of tokens. Compared is
llama-server's best slot count of each line; all are in ``benchmarks/results/chats_smollm2.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.peers.burst import PEER, QUIRE, free_port, running, tree
from benchmarks.peers.quiet import Watch
from benchmarks.peers.setup import Peers, add_options, build_server, locate
from quire.store.hub import resolve_model

MODEL, RESULT = "smollm2", "chats_smollm2"
SLOTS = (1, 4, 8, 16, 32)
NUM_CLIENTS, NUM_TOKENS, NUM_ALONE = 32, 100, 4
#: Tokens that a slot must hold: system prompt, question, answer.
SLOT_TOKENS = 1024
SYSTEM = " ".join(
    [
        "You are the assistant of a public library and answer the questions of its visitors.",
        "Be polite, brief and exact. Where you do not know something, say so and name the desk.",
        *(
            f"Rule {number}: {what} are handled at desk {number} on the {floor} floor, which is "
            f"open from {8 + number % 4} to {15 + number % 5} o'clock, on Saturdays until noon."
            for number, (what, floor) in enumerate(
                zip(
                    "loans returns reservations fines cards maps newspapers films scores games "
                    "readings rooms copies lockers tours gifts".split(),
                    "ground first second third".split() * 4,
                    strict=True,
                ),
                1,
            )
        ),
    ]
)
TOPICS = (
    "bridges rivers clocks bees trains volcanoes paper glass salt owls moons maps wool ships "
    "coffee snow chess bread iron whales kites caves violins deserts lamps rice comets pianos "
    "forests gold foxes tides"
).split()


def command(
    engine: str, peers: Peers, path: Path, port: int, slots: int, threads: int
) -> list[str]:
    """Return the command line of a server: as many tokens of context for both."""
    if engine == QUIRE:
        return [
            sys.executable, "-m", "quire.cli.main", "serve", str(path), "--port", str(port),
            "--threads", str(threads), "--disable-uvicorn-access-log", "--memory", "4GiB",
            "--max-model-len", str(SLOT_TOKENS),
        ]  # fmt: skip
    return [
        str(peers.server), "-m", str(path), "--port", str(port), "-np", str(slots),
        "-c", str(slots * SLOT_TOKENS), "-t", str(threads), "-tb", str(threads), "--no-webui",
    ]  # fmt: skip


def ask(port: int, topic: str) -> int:
    """Send one chat and return the tokens of its answer.

    Raises:
        SystemExit: The answer has another number of tokens.
    """
    body = {
        "messages": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Which books about {topic} can you recommend, and why?"},
        ],
        "temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True,
    }  # fmt: skip
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        usage = json.load(answer)["usage"]
    if usage["completion_tokens"] != NUM_TOKENS:
        raise SystemExit(f"[chats] an answer must have {NUM_TOKENS} tokens; got {usage}")
    return NUM_TOKENS


def rate(port: int, topics: Sequence[str], num_clients: int) -> float:
    """Return output tokens per second of chats that ``num_clients`` send."""
    with ThreadPoolExecutor(num_clients) as pool:
        start = time.perf_counter()
        tokens = sum(pool.map(lambda topic: ask(port, topic), topics))
        return tokens / (time.perf_counter() - start)


def measure(words: list[str], port: int, rounds: int) -> dict[str, Any]:
    """Run one server and return its rates."""
    many, alone = [], []
    with running(words, port) as (process, _):
        watch = Watch([item.pid for item in tree(process)])
        ask(port, "libraries")
        watch.begin()
        for _ in range(rounds):
            many.append(rate(port, TOPICS, NUM_CLIENTS))
            alone.append(rate(port, TOPICS[:NUM_ALONE], 1))
        verdict = watch.end()
        rss = sum(item.memory_info().rss for item in tree(process))
    return {
        "32 clients": results.summary(many),
        "1 client": results.summary(alone),
        "rss_bytes": rss,
        "foreign": verdict.foreign,
        "was_quiet": verdict.is_quiet,
    }


def print_table(found: dict[str, dict[str, Any]]) -> None:
    """Print both lines: Quire, llama-server's best, their ratio."""
    table = Table("tokens/s", "Quire", "llama-server", "slots", "ratio")
    for line in ("32 clients", "1 client"):
        peers = {name: entry[line]["median"] for name, entry in found.items() if name != QUIRE}
        ours = found[QUIRE][line]["median"] if QUIRE in found else float("nan")
        best = max(peers, key=peers.__getitem__, default=None)
        theirs = peers[best] if best is not None else float("nan")
        slots = best.rpartition(" ")[2] if best is not None else ""
        table.add_row(line, f"{ours:.1f}", f"{theirs:.1f}", slots, f"{ours / theirs:.2f}")
    Console().print(table)
    noisy = [name for name, entry in found.items() if not entry["was_quiet"]]
    if noisy:
        Console().print(f"others took part of the machine during: {', '.join(noisy)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--server", choices=(QUIRE, PEER), help="default: both")
    parser.add_argument("--slots", type=int, action="append", help="of llama-server")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="measure nothing, print the file")
    arguments = parser.parse_args()
    file = results.RESULTS / f"{RESULT}.json"
    wanted = [(QUIRE, 0)] if arguments.server != PEER else []
    if arguments.server != QUIRE:
        wanted += [(PEER, slots) for slots in arguments.slots or SLOTS]
    if not arguments.show:
        peers, path = locate(arguments), resolve_model(MODEL)
        if arguments.server != QUIRE:
            build_server(peers)
        run = {"threads": arguments.threads, "clients": NUM_CLIENTS, "output_tokens": NUM_TOKENS}
        for engine, slots in wanted:
            port = free_port()
            words = command(engine, peers, path, port, slots, arguments.threads)
            name = engine if engine == QUIRE else f"{engine} {slots}"
            entry = measure(words, port, arguments.rounds)
            results.merge(RESULT, {MODEL: {name: entry}}, run=run, file=path.name)
    print_table(json.loads(file.read_text())["results"][MODEL])


if __name__ == "__main__":
    main()
