"""Two checkouts of this repository on the same work, in turn: what a change did to speed.

    python -m benchmarks.before_after OTHER [--checkpoint FOLDER] [--rounds N]

OTHER is another checkout with a virtual environment of its own (``make .venv/.core`` there); the
ratio is this one's speed to the other's, above 1 where this one is faster. Both keep a model loaded
in a process of their own and work in turn, round after round. A round is one of:

* ``generate``: ``LLM.generate`` of token ids without text, one prompt or several, tokens a second;
* ``http``: that many streams at once of ``/v1/chat/completions``, tokens a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from benchmarks import results
from benchmarks.sse_client import SseClient

ROOT = Path(__file__).parents[1]
_numbers = count()

#: Runs in either checkout, so it keeps to what both have: the public API and the tools of tests.
_GENERATE = """
import json, sys, time
from quire import LLM, SamplingParams
settings, batch, tokens = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
llm = LLM(**settings)
params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
for line in sys.stdin:
    first = int(line)
    prompts = [[(7 * i + 13 * (first + n)) % 200 for i in range(32)] for n in range(batch)]
    start = time.perf_counter()
    done = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    seconds = time.perf_counter() - start
    assert all(len(output.outputs[0].token_ids) == tokens for output in done)
    print(batch * tokens / seconds, flush=True)
"""
_SERVE = """
import sys
from tools.serve_process import ServeProcess
with ServeProcess(sys.argv[1:]) as server:
    print(server.wait_ready(), flush=True)
    sys.stdin.read()
    server.end()
"""


class Worker:
    """Code that runs in a checkout, fed by lines and answering with lines."""

    def __init__(self, tree: Path, code: str, *arguments: str) -> None:
        python = tree / ".venv" / "bin" / "python"
        command = [str(python) if python.exists() else sys.executable, "-c", code, *arguments]
        self._process = subprocess.Popen(
            command, cwd=tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def read(self) -> str:
        """Return the next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the worker has ended; see its messages above")
        return line.strip()

    def ask(self, line: str) -> str:
        """Send a line and return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self.read()

    def close(self) -> None:
        """Let it end."""
        self._process.communicate()


async def _streams(clients: list[SseClient], tokens: int) -> float:
    """Return tokens per second of one request on each connection."""
    loop = asyncio.get_running_loop()

    def body() -> dict[str, Any]:
        question = f"{next(_numbers)} What is the capital of France?"
        return {
            "messages": [{"role": "user", "content": question}],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    start = loop.time()
    done = await asyncio.gather(*(c.stream("/v1/chat/completions", body()) for c in clients))
    return sum(timeline.num_tokens for timeline in done) / (loop.time() - start)


def _turns(trees: dict[str, Path], round_number: int) -> list[str]:
    """Return who works when: neither is always the one after the other."""
    return sorted(trees, reverse=bool(round_number % 2))


def measure_generate(
    trees: dict[str, Path], settings: dict[str, Any], batch: int, tokens: int, rounds: int
) -> dict[str, list[float]]:
    """Return tokens per second of each round, by checkout."""
    found: dict[str, list[float]] = {name: [] for name in trees}
    with ExitStack() as stack:
        arguments = (json.dumps(settings), str(batch), str(tokens))
        workers = {
            name: stack.enter_context(closing(Worker(tree, _GENERATE, *arguments)))
            for name, tree in trees.items()
        }
        for round_number in range(rounds + 1):
            for name in _turns(trees, round_number):
                speed = float(workers[name].ask(str(1000 * round_number)))
                if round_number:
                    found[name].append(speed)
    return found


async def measure_http(
    trees: dict[str, Path], arguments: list[str], streams: int, tokens: int, rounds: int
) -> dict[str, list[float]]:
    """Return tokens per second of each round, by checkout."""
    found: dict[str, list[float]] = {name: [] for name in trees}
    with ExitStack() as stack:
        clients: dict[str, list[SseClient]] = {}
        for name, tree in trees.items():
            worker = stack.enter_context(closing(Worker(tree, _SERVE, *arguments)))
            address = urlsplit(worker.read())
            assert address.hostname is not None and address.port is not None
            clients[name] = [
                stack.enter_context(closing(SseClient(address.hostname, address.port)))
                for _ in range(streams)
            ]
        for round_number in range(rounds + 1):
            for name in _turns(trees, round_number):
                speed = await _streams(clients[name], tokens)
                if round_number:
                    found[name].append(speed)
    return found


def compare(name: str, speeds: dict[str, list[float]]) -> dict[str, Any]:
    """Return a row: both medians, and the median and spread of the ratios round by round."""
    ratios = [a / b for a, b in zip(speeds["this"], speeds["other"], strict=True)]
    row = {
        "case": name,
        "ratio": results.summary(ratios),
        "tokens_per_second": {key: median(values) for key, values in speeds.items()},
    }
    print(
        f"{name}: {row['ratio']['median']:.3f} "
        f"({row['ratio']['min']:.3f}..{row['ratio']['max']:.3f}), tokens a second "
        + ", ".join(f"{key} {value:.1f}" for key, value in row["tokens_per_second"].items()),
        flush=True,
    )
    return row


def main() -> None:
    """Measure and write ``benchmarks/results/before_after.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("--checkpoint", help="large model for one-stream decode")
    parser.add_argument("--quantization", default="int4", help="of that model; none for none")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--skip-write", action="store_true", help="print only")
    options = parser.parse_args()
    trees = {"this": ROOT, "other": options.other.resolve()}
    rounds, rows = options.rounds, []
    tiny = {"max_num_seqs": 64, "enable_prefix_caching": False, "max_model_len": 1024}
    for batch, tokens in ((1, 400), (16, 200)):
        found = measure_generate(trees, tiny, batch, tokens, rounds)
        rows.append(compare(f"quire-tiny, generate, {batch} at once", found))
    if options.checkpoint:
        large = {"model": options.checkpoint, "max_model_len": 512, "max_num_seqs": 4}
        if options.quantization != "none":
            large["quantization"] = options.quantization
        found = measure_generate(trees, large, 1, 48, rounds)
        name = Path(options.checkpoint).name
        rows.append(compare(f"{name} {options.quantization}, generate, 1 at once", found))
    arguments = ["--max-num-seqs", str(options.streams), "--disable-uvicorn-access-log"]
    arguments += ["--disable-log-requests", "--no-enable-prefix-caching"]
    found = asyncio.run(measure_http(trees, arguments, options.streams, 128, rounds))
    rows.append(compare(f"quire-tiny, HTTP, {options.streams} streams", found))
    if not options.skip_write:
        head = ["git", "rev-parse", "--short", "HEAD"]
        other = subprocess.run(head, cwd=trees["other"], capture_output=True, text=True)
        results.write("before_after", rows, other_commit=other.stdout.strip(), rounds=rounds)


if __name__ == "__main__":
    main()
