"""Run Quire and llama.cpp in turn on the same bf16 weights and write the table of ratios.

    python -m benchmarks.peers.compare CHECKPOINT FILE.gguf --peer-python PEER_VENV/bin/python

Every round runs each case once on both engines, back to back, in alternating order; figures are
medians over the rounds. A worker waits in a read while the other one computes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import results
from benchmarks.peers.protocol import Setup, Worker

CASES = {
    "prefill 512": {"kind": "prefill", "tokens": 512},
    "decode batch 1": {"kind": "decode", "batch": 1, "depth": 32, "steps": 12},
    "decode batch 8": {"kind": "decode", "batch": 8, "depth": 32, "steps": 8},
    "decode batch 16": {"kind": "decode", "batch": 16, "depth": 32, "steps": 6},
}


def tokens_per_second(case: dict[str, int | str], answer: float | list[float]) -> float:
    """Return tokens per second of a worker's answer."""
    if case["kind"] == "prefill":
        assert isinstance(answer, float)
        return int(case["tokens"]) / answer
    assert isinstance(answer, list)
    return int(case["batch"]) / statistics.median(answer)


def measure(workers: dict[str, Worker], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return tokens per second by case and engine, one value per round."""
    rates: dict[str, dict[str, list[float]]] = {
        case: {engine: [] for engine in workers} for case in CASES
    }
    for round_index in track(range(rounds + 1), "rounds (the first warms up)"):
        for name, case in CASES.items():
            order = list(workers) if round_index % 2 else list(reversed(workers))
            for engine in order:
                rate = tokens_per_second(case, workers[engine].ask(**case))
                if round_index:
                    rates[name][engine].append(rate)
    return rates


def report(rates: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, object]]:
    """Print the table and return it as data."""
    table = Table("case", "quire tok/s", "llama.cpp tok/s", "ratio", "spread of the ratio")
    rows: dict[str, dict[str, object]] = {}
    for case, engines in rates.items():
        ratios = [a / b for a, b in zip(engines["quire"], engines["llama.cpp"], strict=True)]
        row = {
            "quire_tokens_per_second": results.summary(engines["quire"]),
            "llama_cpp_tokens_per_second": results.summary(engines["llama.cpp"]),
            "ratio": results.summary(ratios),
        }
        rows[case] = row
        table.add_row(
            case,
            f"{statistics.median(engines['quire']):.1f}",
            f"{statistics.median(engines['llama.cpp']):.1f}",
            f"{statistics.median(ratios):.2f}x",
            f"{min(ratios):.2f}..{max(ratios):.2f}",
        )
    Console().print(table)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="Hugging Face folder, bf16")
    parser.add_argument("gguf", type=Path, help="the same weights, from gguf_checkpoint.py")
    parser.add_argument("--peer-python", required=True, help="python with llama-cpp-python")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--name", default="compare_llama_cpp_bf16")
    arguments = parser.parse_args()
    workers = {
        "quire": Worker(
            sys.executable,
            ["-m", "benchmarks.peers.quire_worker"],
            Setup(str(arguments.checkpoint.resolve()), arguments.threads, 1024, 16),
        ),
        "llama.cpp": Worker(
            arguments.peer_python,
            ["benchmarks/peers/llama_cpp_worker.py"],
            Setup(str(arguments.gguf.resolve()), arguments.threads, 1024, 16),
        ),
    }
    rows = report(measure(workers, arguments.rounds))
    for worker in workers.values():
        worker.close()
    path = results.write(arguments.name, rows, model=arguments.checkpoint.name)
    print(f"written: {path.relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
