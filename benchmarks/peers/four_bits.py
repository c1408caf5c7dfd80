"""GPTQ and AWQ checkpoints against 4-bit weights of llama.cpp and OpenVINO, in turn.

    scripts/bench four_bits --openvino-python PYTHON --openvino-model FOLDER

All hold Llama 3.2 1B's shape with groups of 128 (llama.cpp's Q4_0: 32). The output head is 8 bits
in OpenVINO, 6 in llama.cpp, and 8 here (``--quantization-overrides lm_head=int8``). FOLDER is what
``optimum-cli export openvino --task text-generation-with-past --weight-format int4 --group-size 128
--ratio 1.0`` writes of the checkpoint in ``build/peers/models``; PYTHON has the package openvino.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.peers.cases import BATCH_DEPTH, CASES
from benchmarks.peers.compare import PEER, QUIRE, STEPS, Comparison, start_worker
from benchmarks.peers.protocol import ROOT, Setup, Worker
from benchmarks.peers.setup import add_options, install, locate, make_model

SHAPE = "llama-3.2-1b"
OPENVINO = "OpenVINO int4"
LLAMA_CPP = f"{PEER} Q4_0"
#: Random weights: how they were rounded makes no difference to the speed, the layout does.
FORMATS = {"gptq": (), "awq": ("--asymmetric",)}
LINES = ("decode, batch 1", "decode, batch 32", "prefill 512")
HEAD = "lm_head=int8"


def make_checkpoint(source: Path, name: str) -> Path:
    """Return a folder of a 4-bit layout, made when it is not there."""
    out = source.with_name(f"{source.name}.{name}")
    if not (out / "config.json").exists():
        command = ("quantize", source, out, "--method", "rtn", "--format", name, *FORMATS[name])
        subprocess.run([sys.executable, "-m", "quire", *map(str, command)], cwd=ROOT, check=True)
    return out


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return rates by line of the table and engine, and ratios of ours to each peer's."""
    peers = locate(arguments)
    install(peers)
    q4_0 = make_model(peers, SHAPE, "q4_0")
    cases = [case for case in CASES if case.name in LINES]
    sizes: dict[str, Any] = {
        "threads": arguments.threads, "context": 512 + STEPS, "batches": 32,
        "batch_context": BATCH_DEPTH + STEPS,
    }  # fmt: skip
    workers = {
        f"{QUIRE} {name}": start_worker(
            QUIRE,
            peers,
            Setup(
                str(make_checkpoint(peers.models / SHAPE, name)), **sizes,
                quantization_overrides=HEAD,
            ),
        )
        for name in FORMATS
    }  # fmt: skip
    workers[LLAMA_CPP] = start_worker(PEER, peers, Setup(str(q4_0), **sizes))
    workers[OPENVINO] = Worker(
        str(arguments.openvino_python),
        ["benchmarks/peers/openvino_worker.py"],
        Setup(str(arguments.openvino_model), **sizes),
    )
    versions = {name: worker.paths for name, worker in workers.items() if worker.paths}
    comparison = Comparison(workers, retries=1)
    try:
        comparison.run(cases, arguments.rounds)
    finally:
        for worker in workers.values():
            worker.close()
    found = {}
    for case in cases:
        rates = comparison.rates[case.name]
        ratios = {
            f"{QUIRE} {ours} / {peer}": results.summary(
                [a / b for a, b in zip(rates[f"{QUIRE} {ours}"], rates[peer], strict=True)]
            )
            for ours in FORMATS
            for peer in (LLAMA_CPP, OPENVINO)
        }
        found[case.name] = {
            "unit": "tokens/s",
            "rates": {engine: results.summary(values) for engine, values in rates.items()},
            "ratios": ratios,
            "rounds_not_quiet": comparison.noisy.get(case.name, 0),
        }
    name = results.per_processor(f"four_bits_{SHAPE}")
    settings = {"threads": arguments.threads, "rounds": arguments.rounds, "head": HEAD}
    print(results.write(name, found, **settings, peers=versions).relative_to(ROOT))
    return found


def show(found: dict[str, Any]) -> None:
    """Print medians."""
    first = next(iter(found.values()))
    table = Table(*(["", *first["rates"], *first["ratios"]]))
    for line, entry in found.items():
        rates = [f"{value['median']:.1f}" for value in entry["rates"].values()]
        table.add_row(line, *rates, *(f"{v['median']:.2f}" for v in entry["ratios"].values()))
    Console(width=160).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--openvino-python", type=Path, required=True)
    parser.add_argument("--openvino-model", type=Path, required=True)
    add_options(parser)
    show(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
