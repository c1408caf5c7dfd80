"""GPTQ of one layer of Llama 3.2 1B's shape: ``quire quantize`` and llmcompressor, in turn.

``awq`` is ``quire quantize --method awq`` of the same layer.

    scripts/bench gptq_tools --llmcompressor-python PYTHON

PYTHON has the package llmcompressor. Ours is timed from the command's start to its end; of the
peer, only the call that calibrates and rounds.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks import results
from benchmarks.peers.protocol import ROOT
from tools.random_checkpoint import PRESETS, random_checkpoint

QUIRE, AWQ, PEER = "quire", "awq", "llmcompressor"
#: A small vocabulary: neither tool rounds the head.
MODEL = PRESETS["llama-3.2-1b"] | {"num_hidden_layers": 1, "vocab_size": 4096}


def quire_seconds(method: str, checkpoint: Path, out: Path, arguments: argparse.Namespace) -> float:
    """Run ``quire quantize``."""
    flags = {
        "--method": method, "--format": "compressed-tensors", "--samples": arguments.samples,
        "--sample-length": arguments.sample_length, "--threads": arguments.threads,
    }  # fmt: skip
    command = [str(word) for pair in flags.items() for word in pair]
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "quire", "quantize", str(checkpoint), str(out), *command],
        cwd=ROOT,
        check=True,
    )
    return time.perf_counter() - start


def peer_seconds(checkpoint: Path, out: Path, arguments: argparse.Namespace) -> float:
    """Run llmcompressor."""
    sizes = (arguments.samples, arguments.sample_length, arguments.threads)
    done = subprocess.run(
        [arguments.llmcompressor_python, "benchmarks/peers/llmcompressor_run.py", checkpoint, out]
        + [str(size) for size in sizes],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llmcompressor-python", required=True)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--sample-length", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    tools = {
        QUIRE: partial(quire_seconds, "gptq"),
        AWQ: partial(quire_seconds, "awq"),
        PEER: peer_seconds,
    }
    seconds: dict[str, list[float]] = {name: [] for name in tools}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, out = Path(folder) / "model", Path(folder) / "out"
        random_checkpoint(checkpoint, MODEL)
        for _ in range(arguments.rounds):
            for name, run in tools.items():
                seconds[name].append(run(checkpoint, out, arguments))
                shutil.rmtree(out)
    pairs = zip(seconds[PEER], seconds[QUIRE], strict=True)
    found = {name: results.summary(values) for name, values in seconds.items()} | {
        "ratio": results.summary([peer / ours for peer, ours in pairs])
    }
    sizes = {"samples": arguments.samples, "sample_length": arguments.sample_length}
    path = results.write(
        results.per_processor("gptq_tools"), found, threads=arguments.threads, **sizes
    )
    print({name: round(value["median"], 2) for name, value in found.items()}, path.name)


if __name__ == "__main__":
    main()
