"""Time to the first token of a 2,048-token prompt whose KV blocks were evicted, by tier.

    scripts/bench tiers [PRESET]

The cache holds one prompt; two are asked in turn, so that each has to come back from its tier.
They are computed once by each engine: that is what the others are compared with. Files are read
from the device: the system's copies are dropped before. ``restart`` is the first request of a new
engine. ``stream`` is one that makes tokens while a prompt comes back: its longest step until
the last block is there, and its median step without.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.engine_steps import prompt
from quire import LLM, SamplingParams
from quire.system.machine import read_machine
from tools.random_checkpoint import PRESETS, random_checkpoint

TOKENS, BLOCK = 2048, 16
NUM_BLOCKS = TOKENS // BLOCK + 8
REDIS_PORT = 7391
STREAM_TOKENS = 40


class Asked:
    """An engine whose cache holds one of two prompts.

    Args:
        folder: The checkpoint.
        settings: Of the engine.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.llm = LLM(
            str(folder), max_model_len=TOKENS + 64, num_gpu_blocks_override=NUM_BLOCKS,
            max_num_seqs=4, threads=read_machine().num_cores, **settings,
        )  # fmt: skip
        self.llm.generate([5] * 8, SamplingParams(max_tokens=4, ignore_eos=True))

    def seconds(self, number: int) -> tuple[float, int]:
        """Return the time to a prompt's first token, and its tokens that were not computed."""
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        (output,) = self.llm.generate([prompt(TOKENS, number)], params, False)
        return time.perf_counter() - start, output.num_cached_tokens

    def settle(self) -> None:
        """Wait until what is queued was written."""
        tiers = self.llm.engine.executor.tiers
        assert tiers is not None
        while tiers.slow.num_queued:
            time.sleep(0.01)

    def stream(self, number: int) -> dict[str, float]:
        """Return a stream's median step, and its longest one while a prompt's blocks come."""
        engine = self.llm.engine
        params = SamplingParams(max_tokens=STREAM_TOKENS, ignore_eos=True, detokenize=False)
        engine.add_request("stream", [7] * 8, params)
        steps: list[float] = []
        for _ in range(10):
            steps.append(self._step())
        engine.add_request(
            "prompt", prompt(TOKENS, number), SamplingParams(max_tokens=1, ignore_eos=True)
        )
        loading: list[float] = []
        scheduler = engine.engine.scheduler
        while engine.has_unfinished_requests():
            waits = "prompt" in scheduler.held or len(scheduler.waiting)
            seconds = self._step()
            if waits and ("prompt" in scheduler.held):
                loading.append(seconds)
        return {
            "median_step": median(steps[2:]),
            "longest_loading_step": max(loading, default=0.0),
            "loading_steps": len(loading),
        }

    def _step(self) -> float:
        start = time.perf_counter()
        self.llm.engine.step()
        return time.perf_counter() - start


def drop_copies(folder: Path) -> None:
    """Have the system read a folder's files from the device again."""
    for path in folder.rglob("*.kv"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def measure(
    folder: Path, settings: dict[str, Any], files: Path | None, repeats: int
) -> dict[str, Any]:
    """Return the seconds of computing and loading the prompts with these settings."""
    computed, loaded = [], []
    asked = Asked(folder, settings)
    for number in (0, 1):
        seconds, num_cached = asked.seconds(number)
        assert num_cached == 0, num_cached
        computed.append(seconds)
    asked.settle()
    for repeat in range(repeats + 1):
        for number in (0, 1):
            if files is not None:
                drop_copies(files)
            seconds, num_cached = asked.seconds(number)
            assert num_cached == TOKENS - BLOCK, num_cached
            if repeat:
                loaded.append(seconds)
    row: dict[str, Any] = {"computed": results.summary(computed), "loaded": results.summary(loaded)}
    row["stream"] = asked.stream(0)
    asked.llm.shutdown()
    if files is not None:
        restarted = []
        for number in (0, 1):
            again = Asked(folder, settings)
            drop_copies(files)
            seconds, num_cached = again.seconds(number)
            assert num_cached == TOKENS - BLOCK, num_cached
            restarted.append(seconds)
            again.llm.shutdown()
        row["restarted"] = results.summary(restarted)
    return row


def measure_shared(folder: Path, repeats: int) -> dict[str, Any] | None:
    """Return the same of a store on this machine; None where there is none."""
    if shutil.which("redis-server") is None:
        return None
    command = ["redis-server", "--port", str(REDIS_PORT), "--save", "", "--bind", "127.0.0.1"]
    with tempfile.TemporaryDirectory() as root:
        server = subprocess.Popen([*command, "--dir", root], stdout=subprocess.DEVNULL)
        try:
            url = f"redis://127.0.0.1:{REDIS_PORT}/0"
            return measure(folder, {"kv_offload_url": url}, None, repeats)
        finally:
            server.kill()
            server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("preset", nargs="?", default="llama-3.2-1b", choices=sorted(PRESETS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="for the files; default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as root:
        folder, files = Path(root) / "model", Path(root) / "kv"
        random_checkpoint(folder, PRESETS[options.preset], dtype="bfloat16")
        found = {
            "ram": measure(folder, {"kv_offload_bytes": "512MiB"}, None, options.repeats),
            "disk": measure(folder, {"kv_offload_dir": str(files)}, files, options.repeats),
        }
        shared = measure_shared(folder, options.repeats)
        if shared is not None:
            found["shared"] = shared
    table = Table("tier", "computed", "loaded", "times faster", "after a restart", "times faster")
    for name, row in found.items():
        cells = [f"{row['computed']['median']:.2f} s"]
        for key in ("loaded", "restarted"):
            if key in row:
                row[f"speedup_{key}"] = row["computed"]["median"] / row[key]["median"]
                cells += [f"{row[key]['median'] * 1e3:.0f} ms", f"{row[f'speedup_{key}']:.1f}"]
        table.add_row(name, *cells)
    Console().print(table)
    for name, row in found.items():
        print(name, row["stream"])
    path = results.write(results.per_processor(f"tiers_{options.preset}"), found, tokens=TOKENS)
    print(f"written: {path.name}")


if __name__ == "__main__":
    main()
