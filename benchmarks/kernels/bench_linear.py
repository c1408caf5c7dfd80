"""Linear layers of Llama-3.2-1B and quire-tiny shapes against the machine's measured limits.

    python -m benchmarks.kernels.bench_linear [--threads 1 2] [--isa avx2] [--dtype int8 nf4]

Every round measures the limits and then each case once. Weights larger than the caches are read
from memory: a case goes round over copies of its matrix. ``of_roofline`` is the time that the
limits allow, max(weight bytes / bandwidth, operations / peak), over the time taken: best over best
(what the kernel does when left alone) and median over median (what it did here). One thread is
timed by its own CPU clock, which a neighbour on the same core does not move; two by the wall's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from benchmarks import results
from quire.kernels.cpu.linear import CpuLinear
from quire.kernels.cpu.native import native
from quire.kernels.cpu.probe import MachineSpeed, measure_machine
from quire.kernels.host_tensor import HostTensor
from quire.quantization.round_to_nearest import create_scheme, quantize

#: name: (in_features, out_features, rows)
SHAPES = {
    "qkv": (2048, 3072, (1, 2, 4, 8, 16, 32, 128, 512, 2048)),
    "o": (2048, 2048, (1, 8, 16, 512)),
    "gate_up": (2048, 16384, (1, 8, 16, 512)),
    "down": (8192, 2048, (1, 8, 16, 512)),
    "head": (2048, 128256, (1, 8, 16)),
    "tiny_qkv": (256, 512, (1, 8, 256)),
    "tiny_down": (704, 256, (1, 8, 256)),
}
#: Formats whose weights are floats; others are names of rounding schemes.
FLOATS = ("bfloat16", "float16", "float32")
#: Bytes of weights a case goes round over, beyond the last cache.
WORKING_SET = 100 << 20


@dataclass
class Case:
    """One matrix at one number of rows, with its times."""

    shape: str
    rows: int
    layers: list[CpuLinear]
    seconds: list[float] = field(default_factory=list)

    def run(self, clock: Callable[[], float]) -> None:
        """Time one call on each copy of the matrix, after one unmeasured call."""
        x = np.ones((self.rows, self.layers[0].in_features), np.float32)
        out = np.empty((self.rows, self.layers[0].out_features), np.float32)
        self.layers[-1](x, out)
        for layer in self.layers[:16]:
            start = clock()
            layer(x, out)
            self.seconds.append(clock() - start)


def random_layer(inputs: int, outputs: int, dtype: str) -> CpuLinear:
    """Make a layer of random weights; a large one repeats a smaller block."""
    rows = min(outputs, 1024)
    block = np.random.default_rng(0).standard_normal((rows, inputs), dtype=np.float32)
    blocks = [block[: outputs - first] for first in range(0, outputs, rows)]
    tensors = [HostTensor("w", "float32", part) for part in blocks]
    if dtype in FLOATS:
        return CpuLinear(tensors, [], dtype)
    return CpuLinear([quantize(tensor, create_scheme(dtype)) for tensor in tensors], [], "float32")


def check(layer: CpuLinear) -> None:
    """Compare three rows with float64."""
    x = np.random.default_rng(1).standard_normal((3, layer.in_features), dtype=np.float32)
    weight = layer.lookup(np.arange(64, dtype=np.int32)).astype(np.float64)
    error = np.abs(layer(x)[:, :64] - x @ weight.T).max()
    # Activations have 7 to 8 bits.
    limit = 0.02 * layer.in_features**0.5
    assert error < limit, f"error {error} must be below {limit}"


def cases_of(shape: str, dtype: str, checked: bool) -> list[Case]:
    """Make a shape's cases; they share the copies of the matrix."""
    inputs, outputs, all_rows = SHAPES[shape]
    layers = [random_layer(inputs, outputs, dtype)]
    nbytes = layers[0].nbytes
    copies = 1 if nbytes < 1 << 20 else -(-WORKING_SET // nbytes)
    layers += [random_layer(inputs, outputs, dtype) for _ in range(1, copies)]
    if checked:
        check(layers[0])
    return [Case(shape, rows, layers if rows <= 32 else layers[:1]) for rows in all_rows]


def figures(case: Case, dtype: str, speeds: list[MachineSpeed]) -> dict[str, object]:
    """Return a case's times, rates and fractions of the limits measured beside it."""
    layer = case.layers[0]
    operations = 2 * case.rows * layer.in_features * layer.out_features
    uses_dot = dtype == "bfloat16" and speeds[0].dot_flops > 0
    peaks = [speed.dot_flops if uses_dot else speed.fma_flops for speed in speeds]
    if dtype not in FLOATS and speeds[0].int8_ops:
        peaks = [speed.int8_ops for speed in speeds]
    reads = [speed.read_bytes_per_second for speed in speeds]
    best = max(layer.nbytes / max(reads), operations / max(peaks)) / min(case.seconds)
    middle = max(
        layer.nbytes / statistics.median(reads), operations / statistics.median(peaks)
    ) / statistics.median(case.seconds)
    summary = results.summary(case.seconds)
    return {
        "shape": f"{case.shape} {layer.in_features}->{layer.out_features}",
        "dtype": dtype,
        "isa": speeds[0].isa,
        "threads": speeds[0].threads,
        "rows": case.rows,
        "seconds": summary,
        "gb_per_second": round(layer.nbytes / summary["min"] / 1e9, 2),
        "gflops": round(operations / summary["min"] / 1e9, 1),
        "read_limit_gb_per_second": round(max(reads) / 1e9, 2),
        "compute_limit_gflops": round(max(peaks) / 1e9, 1),
        "of_roofline_best": round(best, 3),
        "of_roofline_median": round(middle, 3),
    }


def measure(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield the figures of every case asked for."""
    for dtype in options.dtype:
        for shape in options.shape:
            cases = cases_of(shape, dtype, options.check)
            for threads in options.threads:
                native.set_num_threads(threads)
                speeds = []
                for case in cases:
                    case.seconds.clear()
                for _ in range(options.rounds):
                    speeds.append(measure_machine(threads))
                    for case in cases:
                        case.run(time.thread_time if threads == 1 else time.perf_counter)
                yield from (figures(case, dtype, speeds) for case in cases)


def main() -> None:
    """Run, print a line a case, write ``results/kernels_linear.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--isa", choices=native.available_isas(), default=native.isa())
    parser.add_argument("--dtype", nargs="+", default=[*FLOATS, "int8", "int4"])
    parser.add_argument("--shape", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="compare with float64 first")
    parser.add_argument("--output", default="kernels_linear", help="name of the result file")
    options = parser.parse_args()
    native.set_isa(options.isa)
    rows = []
    for row in measure(options):
        rows.append(row)
        print(
            f"{row['isa']} {row['dtype']:8} {row['shape']:24} T={row['threads']} M={row['rows']:<5}"
            f"{row['gb_per_second']:8.1f} GB/s {row['gflops']:8.1f} GFLOP/s  of roofline: "
            f"best {row['of_roofline_best']:.2f}, median {row['of_roofline_median']:.2f}",
            flush=True,
        )
    print(results.write(options.output, rows, warmup=1, rounds=options.rounds))


if __name__ == "__main__":
    main()
