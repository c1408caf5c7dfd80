"""Sampling and log-probabilities over large vocabularies, beside one read of a model's weights.

``of_decode_step`` is the cost as a share of the least time a decode step of a 1.2 B parameter
bfloat16 model can take: the time to read its weights at the measured bandwidth.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks import results
from quire.kernels.cpu.backend import CpuBackend
from quire.kernels.cpu.native import native
from quire.kernels.cpu.probe import measure_machine
from tests.kernels.sampling_cases import batch

SETTINGS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.7},
    "top_k 50": {"top_k": 50},
    "top_p 0.9": {"top_p": 0.9},
    "top_k 50, top_p 0.9": {"top_k": 50, "top_p": 0.9},
    "min_p 0.05": {"min_p": 0.05},
}
MODEL_BYTES = 2.4e9


def peaked(rows: int, vocab: int) -> np.ndarray:
    """Logits as a trained model gives them: a wide bulk and a few tokens far above it."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((rows, vocab)) * 2.5
    for row in logits:
        row[rng.integers(0, vocab, 30)] += rng.uniform(6, 18, 30)
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
    for kind, logits in (("peaked", peaked(rows, vocab)), ("flat", flat(rows, vocab))):
        for name, values in settings.items():
            calls[f"{kind}: {name}"] = partial(backend.sample, logits.copy(), values)
        calls[f"{kind}: 20 logprobs"] = partial(backend.token_logprobs, logits, ids, 20)
    return calls


def main() -> None:
    """Run, print a line a case, write ``results/kernels_sampling.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa", choices=native.available_isas(), default=native.isa())
    parser.add_argument("--vocab", type=int, nargs="+", default=[32_000, 128_256, 151_936])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--repeats", type=int, default=21)
    options = parser.parse_args()
    native.set_isa(options.isa)
    backend = CpuBackend(threads=options.threads)
    step = MODEL_BYTES / measure_machine(options.threads).read_bytes_per_second
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    found = []
    for vocab in options.vocab:
        for rows in options.rows:
            calls = cases(backend, rows, vocab)
            times = results.interleave(calls, repeats=options.repeats, clock=clock)
            for name, summary in times.items():
                share = summary["median"] / step
                found.append(
                    {
                        "vocab": vocab,
                        "rows": rows,
                        "case": name,
                        "seconds": summary,
                        "of_decode_step": round(share, 5),
                    }
                )
                print(
                    f"V={vocab:<7} B={rows:<3} {name:34} {summary['median'] * 1e6:9.1f} us "
                    f"(least {summary['min'] * 1e6:9.1f})  {share:7.3%} of a decode step",
                    flush=True,
                )
    extra = {"threads": options.threads, "isa": native.isa(), "decode_step_seconds": step}
    print(results.write("kernels_sampling", found, warmup=1, **extra))


if __name__ == "__main__":
    main()
