"""Sampling and log-probabilities over large vocabularies, as shares of a model's whole decode step.

    python -m benchmarks.kernels.bench_sampling CHECKPOINT... [--quantization none int4]

``of_step`` is a case's part of the engine's step of that checkpoint at that batch, the step's own
greedy choice replaced by the case. Every row of the batch asks for the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.engine_steps import decode_seconds, start_decoding
from quire import LLM
from quire.kernels.cpu.backend import CpuBackend
from quire.kernels.cpu.native import native
from tests.kernels.sampling_cases import batch

SETTINGS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.7},
    "top_k 50": {"top_k": 50},
    "top_p 0.9": {"top_p": 0.9},
    "top_k 50, top_p 0.9": {"top_k": 50, "top_p": 0.9},
    "min_p 0.05": {"min_p": 0.05},
}
GREEDY = "peaked: greedy"


def peaked(rows: int, vocab: int) -> np.ndarray:
    """Logits as a trained model gives them: a wide bulk and a few tokens far above it."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((rows, vocab)) * 2.5
    for row in logits:
        row[rng.integers(0, vocab, 30)] += rng.uniform(6, 18, 30)
    return logits.astype(np.float32)


def long_tailed(rows: int, vocab: int) -> np.ndarray:
    """Logits that fall with the logarithm of a token's rank, as words' do in open text."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((rows, vocab)) * 0.3
    for row in logits:
        row[rng.permutation(vocab)] -= 1.2 * np.log(np.arange(vocab) + 2.7)
    return logits.astype(np.float32)


def flat(rows: int, vocab: int) -> np.ndarray:
    """The worst case: half the vocabulary is in the nucleus."""
    return np.random.default_rng(0).standard_normal((rows, vocab)).astype(np.float32)


def cases(backend: CpuBackend, rows: int, vocab: int) -> dict[str, Callable[[], object]]:
    """Return the calls to time.

    Each draws from its own copy of the logits. Neutral penalties leave it as it is, and those of
    the penalty case are too small to change the work, so the copy serves all rounds.
    """
    history = [list(range(2000))] * rows
    settings = {name: batch(rows, **values) for name, values in SETTINGS.items()}
    settings["penalties over 2000 tokens"] = batch(
        rows, history=history, presence_penalty=1e-6, top_p=0.9
    )
    ids = np.zeros(rows, np.int32)
    calls: dict[str, Callable[[], object]] = {}
    for kind, shape in (("peaked", peaked), ("long tail", long_tailed), ("flat", flat)):
        logits = shape(rows, vocab)
        for name, values in settings.items():
            calls[f"{kind}: {name}"] = partial(backend.sample, logits.copy(), values)
        for num_top in (5, 20):
            name = f"{kind}: {num_top} logprobs"
            calls[name] = partial(backend.token_logprobs, logits, ids, num_top)
    return calls


def step_seconds(llm: LLM, batch: int, steps: int) -> float:
    """Return the median seconds of an engine step that decodes ``batch`` sequences greedily."""
    start_decoding(llm, batch, 32, steps)
    return median(decode_seconds(llm, batch, steps))


def measure(checkpoint: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row a case, batch size and way to hold the weights."""
    steps: dict[tuple[str, int], float] = {}
    vocab = 0
    for quantization in options.quantization:
        llm = LLM(
            checkpoint,
            threads=options.threads,
            max_model_len=256,
            kv_cache_memory_bytes=1 << 29,
            quantization=None if quantization == "none" else quantization,
        )
        vocab = llm.engine.model_config.vocab_size
        for rows in options.rows:
            steps[quantization, rows] = step_seconds(llm, rows, options.steps)
        llm.shutdown()
        del llm
    backend = CpuBackend(threads=options.threads)
    for rows in options.rows:
        times = results.interleave(cases(backend, rows, vocab), repeats=options.repeats)
        for name, summary in times.items():
            seconds = summary["median"]
            others = {
                q: step - times[GREEDY]["median"] for (q, n), step in steps.items() if n == rows
            }
            yield {
                "model": checkpoint.rstrip("/").rpartition("/")[2],
                "vocab": vocab,
                "rows": rows,
                "case": name,
                "seconds": summary,
                "step_seconds": {q: steps[q, rows] for q in others},
                "of_step": {q: round(seconds / (rest + seconds), 5) for q, rest in others.items()},
            }


def main() -> None:
    """Run, print a line a case, write ``results/kernels_sampling.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoints", nargs="*", default=["quire-tiny"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", choices=native.available_isas(), default=native.isa())
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 32])
    parser.add_argument("--quantization", nargs="+", default=["none", "int4"])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    native.set_isa(options.isa)
    found = []
    for checkpoint in options.checkpoints:
        for row in measure(checkpoint, options):
            found.append(row)
            shares = ", ".join(f"{share:6.2%} of {q}" for q, share in row["of_step"].items())
            print(
                f"{row['model']} B={row['rows']:<3} {row['case']:34} "
                f"{row['seconds']['median'] * 1e6:9.1f} us  {shares}",
                flush=True,
            )
    extra = {"threads": options.threads, "isa": native.isa()}
    print(results.write("kernels_sampling", found, warmup=1, **extra).name)


if __name__ == "__main__":
    main()
