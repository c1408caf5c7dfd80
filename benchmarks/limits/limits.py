"""One table for this machine: every kernel and every phase as a fraction of its own limit.

    scripts/bench limits                      # kernels, and every model in build/peers/models
    scripts/bench limits MODEL.gguf --quick   # a minute: fewer shapes, no deep contexts
    scripts/bench limits --show               # print what was measured last

``left`` is what the rest of the time went to, measured: :mod:`benchmarks.limits.accounts` for
kernels, :mod:`benchmarks.limits.phases` for phases. Written to ``limits_<processor>.json``.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.limits import kernels
from benchmarks.limits.accounts import Costs
from benchmarks.limits.phases import Phases
from benchmarks.peers.setup import ROOT
from benchmarks.stopwatch import Stopwatch
from quire.kernels.cpu.native import native
from quire.system.machine import read_machine

PARTS = ("kernels", "phases")
DTYPES = (
    "bfloat16", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "Q5_K", "Q3_K", "Q2_K", "IQ4_XS", "float16",
    "float32",
)  # fmt: skip
#: The type in the name of a comparison's file -> the type whose arithmetic its limit is.
FILE_TYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


def _columns(table: Table, *heads: str) -> Table:
    for head in heads:
        table.add_column(head, justify="left" if head in heads[:2] + ("left",) else "right")
    return table


def _left(row: dict[str, Any]) -> str:
    parts = sorted(row["left"].items(), key=lambda part: -part[1])
    return ", ".join(f"{share:.0%} {name}" for name, share in parts if share >= 0.01)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.1f} us"


def print_tables(document: dict[str, Any]) -> None:
    """Print the machine's peaks, the kernels and each model's phases."""
    console = Console(width=150)
    found, machine = document["results"], document["machine"]
    speed = found["machine"]
    console.print(
        f"{machine['cpu']} ({machine['kind']}, {speed['isa']}), {speed['threads']} threads: "
        f"read {speed['read_bytes_per_second'] / 1e9:.1f} GB/s, float32 "
        f"{speed['fma_flops'] / 1e9:.0f}, bfloat16 {speed['dot_flops'] / 1e9:.0f}, int8 "
        f"{speed['int8_ops'] / 1e9:.0f} GOP/s; a barrier {speed['barrier'] * 1e6:.1f} us"
    )
    heads = ("kernel", "", "rows", "time", "GB/s", "GOP/s", "bound", "of limit", "left")
    table = _columns(Table(title="kernels", title_justify="left"), *heads)
    for row in found["kernels"]:
        table.add_row(
            row["group"], row["name"], str(row["rows"]), _time(row["seconds"]["median"]),
            f"{row['gb_per_second']:.1f}", f"{row['gop_per_second']:.0f}", row["bound"],
            f"{row['of_limit']:.0%}", _left(row),
        )  # fmt: skip
    console.print(table)
    heads = ("phase", "bound", "time", "tok/s", "of limit", "bandwidth", "arithmetic",
             "FLOP/byte in bf16", "barriers", "left")  # fmt: skip
    for model, rows in found["models"].items():
        table = _columns(Table(title=model, title_justify="left"), *heads)
        for row in rows:
            rest = [""] * 5
            if "tokens_per_second" in row:
                rest = [
                    f"{row['tokens_per_second']:,.1f}", f"{row['bandwidth_utilization']:.0%}",
                    f"{row['flop_utilization']:.1%}", f"{row['flops_per_byte_in_bf16']:.2f}",
                    f"{row['jobs']}: {row['barriers']:.1%}",
                ]  # fmt: skip
            table.add_row(
                row["phase"], row["bound"], _time(row["seconds"]["median"]), rest[0],
                f"{row['of_limit']:.0%}", *rest[1:], _left(row),
            )  # fmt: skip
        console.print(table)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure the machine, the kernels and the models."""
    native.set_num_threads(arguments.threads)
    rounds = 3 if arguments.quick else arguments.rounds
    costs = Costs.measured()
    machine = asdict(costs.speed) | {"barrier": costs.barrier}
    found: dict[str, Any] = {"machine": machine, "kernels": [], "models": {}}
    if "kernels" in (arguments.part or PARTS):
        dtypes = arguments.dtype or (DTYPES[:2] if arguments.quick else DTYPES)
        for row in kernels.run(costs, dtypes, rounds, arguments.quick):
            found["kernels"].append(row)
    if "phases" in (arguments.part or PARTS):
        watch = Stopwatch()
        watch.install()
        for path in arguments.models or sorted((ROOT / "build/peers/models").glob("*.gguf")):
            name = path.name.removesuffix(".gguf")
            dtype = FILE_TYPES.get(name.rpartition(".")[2], "quantized")
            model = Phases(path, dtype, costs, watch, arguments.quick)
            found["models"][name] = list(model.all(rounds))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL", help="GGUF files")
    parser.add_argument("--threads", type=int, default=read_machine().num_cores)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", action="append", help="of linears; default: all")
    parser.add_argument("--part", action="append", choices=PARTS, help="default: both")
    parser.add_argument("--quick", action="store_true", help="less of everything; writes no file")
    parser.add_argument("--show", action="store_true", help="measure nothing, print the file")
    arguments = parser.parse_args()
    name = results.per_processor("limits")
    path = results.RESULTS / f"{name}.json"
    if arguments.quick:
        print_tables({"machine": results.machine(), "results": measure(arguments)})
        return
    if not arguments.show:
        results.write(name, measure(arguments), rounds=arguments.rounds)
    print_tables(json.loads(path.read_text()))
    print(f"from {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
