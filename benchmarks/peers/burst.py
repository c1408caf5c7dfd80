"""A burst of requests through both HTTP servers: ``quire serve`` and ``llama-server``.

    scripts/bench burst qwen3-0.6b --type q8_0                   # Quire, then 4 8 16 32 slots
    scripts/bench burst qwen3-0.6b --type q8_0 --server quire
    scripts/bench burst qwen3-0.6b --type q8_0 --server llama-server --slots 16
    scripts/bench burst qwen3-0.6b --type q8_0 --request-rate 0.5

The same 32 requests (token ids, lognormal prompts of mean 200 and outputs of mean 100 tokens, fixed
seed) are sent at once, or at random times (Poisson) of a rate, by ``quire bench serve`` to each
server alone on the machine. Both generate exactly the tokens asked for. Compared is llama-server's
best slot count by output throughput; every count stays in
``benchmarks/results/compare_<shape>_<processor>.json``.
"""

from __future__ import annotations

import argparse
import json
import math
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks import results
from benchmarks.peers.quiet import Watch
from benchmarks.peers.setup import (
    Peers,
    build_server,
    create_parser,
    install,
    locate,
    make_model,
)  # fmt: skip
from benchmarks.peers.table import print_tables

QUIRE, PEER = "quire", "llama-server"
SLOTS = (4, 8, 16, 32)
LOAD = (
    "--num-prompts", "32", "--dataset-name", "lognormal", "--input-len", "200",
    "--output-len", "100", "--max-input-len", "800", "--max-output-len", "400", "--seed", "159",
    "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99", "--disable-tqdm",
)  # fmt: skip
#: Tokens that a slot of llama-server must hold: the longest prompt and its longest output.
SLOT_TOKENS = 1280
#: Key of the result -> (line of the table after the kind of load, unit).
LINES = {
    "output_throughput": ("output", "tokens/s"),
    "mean_ttft_ms": ("TTFT mean", "ms"),
    "p99_ttft_ms": ("TTFT p99", "ms"),
    "median_itl_ms": ("ITL median", "ms"),
    "p99_itl_ms": ("ITL p99", "ms"),
    "rss_bytes": ("resident", "bytes"),
    "ready_seconds": ("server ready", "s"),
}


def free_port() -> int:
    """Return a TCP port that no process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def command(engine: str, peers: Peers, path: Path, port: int, arguments: Any) -> list[str]:
    """Return the command line of a server."""
    threads = str(arguments.threads)
    if engine == QUIRE:
        own = ["--port", str(port), "--threads", threads, "--disable-uvicorn-access-log"]
        limits = ["--max-model-len", str(SLOT_TOKENS), "--num-gpu-blocks-override", str(blocks())]
        words = [sys.executable, "-m", "quire.cli.main", "serve", str(path), *own, *limits]
        return [*words, *arguments.quire_flag]
    slots = arguments.slots
    return [
        str(peers.server), "-m", str(path), "--port", str(port), "-np", str(slots),
        "-c", str(slots * SLOT_TOKENS), "-t", threads, "-tb", threads, "--no-webui",
    ]  # fmt: skip


def blocks() -> int:
    """Return as many KV blocks as llama-server has at 16 slots."""
    return 16 * SLOT_TOKENS // 16 + 1


@contextmanager
def running(words: list[str], port: int) -> Iterator[tuple[psutil.Process, float]]:
    """Start a server; yield its process and the seconds until it was healthy."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        process = psutil.Popen(words, stdout=log, stderr=log)
        try:
            while not _is_healthy(port):
                if process.poll() is not None or time.perf_counter() - start > 120:
                    log.seek(0)
                    raise SystemExit(f"[burst] no server:\n{log.read().decode()[-2000:]}")
                time.sleep(0.05)
            yield process, time.perf_counter() - start
        finally:
            process.terminate()
            try:
                process.wait(60)
            except psutil.TimeoutExpired:
                process.kill()
                process.wait(10)


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def kind_of(arguments: Any) -> str:
    """Return how the load is called in result files."""
    rate = arguments.request_rate
    return "burst" if rate is None else f"{rate:g} requests/s"


def load_of(arguments: Any) -> list[str]:
    """Return the options of ``quire bench serve``."""
    rate = arguments.request_rate
    return [*LOAD, *([] if rate is None else ["--request-rate", str(rate)])]


def send(port: int, engine: str, load: list[str]) -> dict[str, Any]:
    """Send the load and return its result, an error where not every token came.

    Raises:
        SystemExit: A request failed, or an answer has another length than asked for.
    """
    # Tokens of random models need not have a text; their ids tell that they came.
    extra = {QUIRE: {"return_token_ids": True}, PEER: {"return_tokens": True}}[engine]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                sys.executable, "-m", "quire.cli.main", "bench", "serve", "--port", str(port),
                *load, "--extra-body", json.dumps(extra), "--save-result", "--result-dir", folder,
                "--result-filename", "burst.json",
            ],
            check=True,
        )  # fmt: skip
        found: dict[str, Any] = json.loads((Path(folder) / "burst.json").read_text())
    short = [text for text in found["warnings"] if "ended before" in text]
    if found["failed"] or short:
        raise SystemExit(f"[burst] {engine}: {found['error_counts']} {short}")
    found["model_id"] = Path(found["model_id"]).name  # llama-server's is its path
    return found


def tree(process: psutil.Process) -> list[psutil.Process]:
    """Return a process and all below it."""
    return [process, *process.children(recursive=True)]


def measure(engine: str, peers: Peers, path: Path, arguments: Any) -> dict[str, Any]:
    """Start a server, send the burst, return the result with memory and start time."""
    port = free_port()
    with running(command(engine, peers, path, port, arguments), port) as (process, seconds):
        watch = Watch([item.pid for item in tree(process)])
        watch.begin()
        found = send(port, engine, load_of(arguments))
        verdict = watch.end()
        found["rss_bytes"] = sum(item.memory_info().rss for item in tree(process))
    found |= {"ready_seconds": seconds, "foreign": verdict.foreign, "canary": verdict.canary}
    found["was_quiet"] = verdict.is_quiet
    return found


def entries(stored: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the table's lines once both engines were measured: Quire and the best slot count."""
    peer = [value for key, value in stored.items() if key.startswith(PEER)]
    if QUIRE not in stored or not peer:
        return {}
    best = max(peer, key=lambda found: found["output_throughput"])
    found: dict[str, Any] = {}
    for key, (name, unit) in LINES.items():
        ours, theirs = stored[QUIRE][key], best[key]
        found[f"{kind}, {name}"] = {
            "unit": unit,
            "quire": results.summary([ours]),
            "llama.cpp": results.summary([theirs]) | {"slots": best["slots"]},
            "ratio": results.summary([ours / theirs if theirs else math.nan]),
            "rounds_not_quiet": sum(not one["was_quiet"] for one in (stored[QUIRE], best)),
            "commit": stored[QUIRE]["commit"],
        }
    return found


def run(arguments: argparse.Namespace, type_name: str) -> None:
    """Measure what was asked for and merge it into the shape's file."""
    peers = locate(arguments)
    install(peers)
    path = make_model(peers, arguments.shape, type_name)
    wanted = [(QUIRE, 0)] if arguments.server != PEER else []
    if arguments.server != QUIRE:
        build_server(peers)
        wanted += [(PEER, slots) for slots in arguments.slot_counts or SLOTS]
    for engine, slots in wanted:
        arguments.slots = slots
        found = measure(engine, peers, path, arguments) | {"slots": slots}
        found["commit"] = results.commit()
        name = results.per_processor(f"compare_{arguments.shape}")
        key = engine if engine == QUIRE else f"{engine} {slots}"
        kind = kind_of(arguments)
        group = f"{type_name} {kind}"
        common = {"threads": arguments.threads, "load": " ".join(load_of(arguments))}
        results.merge(name, {group: {key: found}}, shape=arguments.shape, run=common)
        stored = json.loads((results.RESULTS / f"{name}.json").read_text())["results"][group]
        results.merge(name, {type_name: entries(stored, kind)}, shape=arguments.shape, run=common)


def main() -> None:
    parser = create_parser(__doc__, "q8_0")
    parser.add_argument("--server", choices=(QUIRE, PEER), help="default: both")
    parser.add_argument("--slots", dest="slot_counts", type=int, action="append")
    parser.add_argument("--request-rate", type=float, help="requests/s; default: all at once")
    parser.add_argument("--quire-flag", action="append", default=[], help="for quire serve")
    arguments = parser.parse_args()
    types = arguments.type or ["q8_0"]
    for type_name in types:
        run(arguments, type_name)
    name = results.per_processor(f"compare_{arguments.shape}")
    print_tables(results.RESULTS / f"{name}.json", types)


if __name__ == "__main__":
    main()
