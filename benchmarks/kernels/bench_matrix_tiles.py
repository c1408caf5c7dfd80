"""Products by matrix tiles next to the same by vectors, for every form of weights, on one thread.

    scripts/bench matrix_tiles [--form "8 bits, groups of 32" ...] [--rows 8 32] [--memory]

Both are timed in turn by the thread's processor time, which neighbours do not stretch. Weights are
2048 x 2048 and stay in the caches; with ``--memory`` calls go round over copies that do not. Also
measured: from how many rows on this processor takes tiles, and how long a first start takes to find
that out. Written to ``kernels_matrix_tiles.json``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.kernels.bench_linear import WORKING_SET
from quire.kernels.cpu import tile_threshold as matrix_rows
from quire.kernels.cpu.linear import CpuLinear
from quire.kernels.cpu.matrix_forms import bfloat16_sample, quantized_forms, sample_of
from quire.kernels.cpu.native import native

SIZE = 2048
ROWS = (1, 4, 8, 16, 24, 32, 64, 256)


def layers_of(name: str, in_memory: bool) -> list[CpuLinear]:
    """Return weights of a form by its name, more of them than caches hold with ``in_memory``."""

    def make() -> CpuLinear:
        if name == matrix_rows.BFLOAT16:
            return bfloat16_sample(SIZE, SIZE)
        return sample_of(quantized_forms(SIZE, SIZE)[name], SIZE, SIZE)

    first = make()
    copies = -(-WORKING_SET // first.nbytes) if in_memory else 1
    return [first, *(make() for _ in range(1, copies))]


def product(layers: list[CpuLinear], rows: int, tiles: bool) -> Callable[[], None]:
    """Return a call that multiplies that many rows by each of the layers."""
    x = np.ones((rows, SIZE), np.float32)
    out = np.empty((rows, SIZE), np.float32)

    def call() -> None:
        matrix_rows.use_tiles(tiles)
        for layer in layers:
            layer(x, out)

    return call


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rates of every form and number of rows."""
    for name in options.form:
        layers = layers_of(name, options.memory)
        for rows in options.rows:
            cases = {
                kernel: product(layers, rows, kernel == "tiles") for kernel in ("tiles", "vectors")
            }
            times = results.interleave(cases, repeats=options.rounds, clock=time.thread_time)
            operations = 2 * rows * SIZE * SIZE * len(layers)
            rates = {kernel: operations / times[kernel]["min"] for kernel in cases}
            ratio = rates["tiles"] / rates["vectors"]
            yield {"form": name, "rows": rows, "operations_per_second": rates, "ratio": ratio}


def main() -> None:
    """Run, print a line a case, write the result file."""
    isas = [*native.available_isas(), *native.emulated_isas()]
    with_tiles = [isa for isa in isas if isa.startswith("amx")]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", choices=with_tiles, default="amx")
    parser.add_argument("--form", nargs="+", choices=matrix_rows.KEYS, default=matrix_rows.KEYS)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", default="kernels_matrix_tiles")
    options = parser.parse_args()
    native.set_isa(options.isa)
    before = native.matrix_rows()
    start = time.perf_counter()
    found: dict[str, Any] = {"rows_for_tiles": matrix_rows.measure()}
    found["seconds_to_find_rows"] = time.perf_counter() - start
    print(f"rows for tiles found in {found['seconds_to_find_rows']:.2f} s")
    native.set_num_threads(1)
    found["products"] = []
    for row in measure(options):
        tiles, vectors = (rate / 1e9 for rate in row["operations_per_second"].values())
        name = f"{row['form']:32} M={row['rows']:<4}"
        print(f"{name} tiles {tiles:7.1f} vectors {vectors:7.1f} GOP/s  {row['ratio']:5.2f}")
        found["products"].append(row)
    native.set_matrix_rows(*before)
    print(results.write(options.output, found, warmup=1, rounds=options.rounds))


if __name__ == "__main__":
    main()
