"""Linear layers of Llama-3.2-1B and quire-tiny shapes against the machine's measured limits.

    python -m benchmarks.kernels.bench_linear [--threads 1 2] [--isa avx2] [--dtype int8 nf4]

Weights larger than the caches are read from memory: a case goes round over copies of its matrix.
Rounds and ``of_roofline``: :mod:`benchmarks.kernels.roofline`.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.kernels import roofline
from benchmarks.kernels.probe import ProbedRates
from quire.checkpoints.gguf.gguf_types import QUANTIZED as GGUF_TYPES
from quire.kernels.backend import Weight
from quire.kernels.cpu.linear import CpuLinear
from quire.kernels.cpu.native import native
from quire.kernels.matrices.host_tensor import HostTensor
from quire.quantization.rounding_schemes import create_scheme, quantize
from tests.quantization.gguf_cases import random_matrix

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
#: Formats whose weights are floats; others are names of rounding schemes or of GGUF's types.
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

    def time(self, clock: Callable[[], float]) -> None:
        """Time one call on each copy of the matrix, after one unmeasured call."""
        x = np.ones((self.rows, self.layers[0].in_features), np.float32)
        out = np.empty((self.rows, self.layers[0].out_features), np.float32)
        self.layers[-1](x, out)
        for layer in self.layers[:16]:
            start = clock()
            layer(x, out)
            self.seconds.append(clock() - start)


def random_weights(inputs: int, outputs: int, dtype: str) -> list[Weight]:
    """Return the matrices of a layer; a large one repeats a smaller block."""
    if dtype in GGUF_TYPES:
        return [random_matrix(dtype, outputs, inputs)]
    rows = min(outputs, 1024)
    block = np.random.default_rng(0).standard_normal((rows, inputs), dtype=np.float32)
    blocks = [block[: outputs - first] for first in range(0, outputs, rows)]
    tensors = [HostTensor("w", "float32", part) for part in blocks]
    if dtype in FLOATS:
        return list(tensors)
    return [quantize(tensor, create_scheme(dtype)) for tensor in tensors]


def random_layer(inputs: int, outputs: int, dtype: str) -> CpuLinear:
    """Make a layer of random weights."""
    held = dtype if dtype in FLOATS else "float32"
    return CpuLinear(random_weights(inputs, outputs, dtype), [], held)


def rounded(x: np.ndarray) -> np.ndarray:
    """Round activations (T, in_features) as integer kernels do: 8 bits in groups of 32."""
    groups = np.pad(x, ((0, 0), (0, -x.shape[1] % 32))).reshape(len(x), -1, 32)
    scales = np.abs(groups).max(2, keepdims=True) / np.float32(127)
    return (np.rint(groups / scales) * scales).reshape(len(x), -1)[:, : x.shape[1]]


def check(layer: CpuLinear, dtype: str) -> None:
    """Compare three rows with float64 on the same activations.

    Not for code books: integer kernels round their entries too (``tests/kernels`` compares these).
    """
    x = np.random.default_rng(1).standard_normal((3, layer.in_features), dtype=np.float32)
    weight = layer.lookup(np.arange(64, dtype=np.int32)).astype(np.float64)
    expected = (x if dtype in FLOATS else rounded(x)) @ weight.T
    error = np.abs(layer(x)[:, :64] - expected).max()
    limit = 0.01 * layer.in_features**0.5  # activations in bfloat16, where the processor has that
    assert error < limit, f"error {error} must be below {limit}"


def cases_of(
    shape: str, dtype: str, checked: bool = False, wanted: Sequence[int] = ()
) -> list[Case]:
    """Make a shape's cases, for ``wanted`` or its own rows; they share the copies of the matrix."""
    inputs, outputs, own_rows = SHAPES[shape]
    layers = [random_layer(inputs, outputs, dtype)]
    nbytes = layers[0].nbytes
    copies = 1 if nbytes < 1 << 20 else -(-WORKING_SET // nbytes)
    layers += [random_layer(inputs, outputs, dtype) for _ in range(1, copies)]
    if checked and dtype != "nf4":
        check(layers[0], dtype)
    return [Case(shape, rows, layers if rows <= 32 else layers[:1]) for rows in wanted or own_rows]


def figures(case: Case, dtype: str, speeds: list[ProbedRates]) -> dict[str, Any]:
    """Return a case's times, rates and fractions of the limits measured with it."""
    layer = case.layers[0]
    operations = 2 * case.rows * layer.in_features * layer.out_features
    peaks = [roofline.peak_of(dtype, speed) for speed in speeds]
    return {
        "shape": f"{case.shape} {layer.in_features}->{layer.out_features}",
        "dtype": dtype,
        "rows": case.rows,
        **roofline.rates(case.seconds, layer.nbytes, operations, speeds, peaks),
    }


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the figures of every case asked for."""
    for dtype, shape in itertools.product(options.dtype, options.shape):
        cases = cases_of(shape, dtype, options.check)
        for threads in options.threads:
            speeds = roofline.run_rounds(cases, threads, options.rounds)
            yield from (figures(case, dtype, speeds) for case in cases)


def main() -> None:
    """Run, print a line a case, write ``results/kernels_linear.json``."""
    parser = roofline.create_parser(__doc__, "kernels_linear", rounds=5)
    parser.add_argument("--dtype", nargs="+", default=[*FLOATS, "int8", "int4"])
    parser.add_argument("--shape", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--check", action="store_true", help="compare with float64 first")
    options = parser.parse_args()
    native.set_isa(options.isa)
    rows = roofline.report(
        measure(options), lambda row: f"{row['dtype']:8} {row['shape']:24} M={row['rows']:<5}"
    )
    print(results.write(options.output, rows, warmup=1, rounds=options.rounds))


if __name__ == "__main__":
    main()
