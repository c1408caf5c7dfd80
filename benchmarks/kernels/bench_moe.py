"""The experts of a mixture-of-experts layer: all in one call, against a call per expert.

    python -m benchmarks.kernels.bench_moe [--dtype bfloat16 int4]

``of_read_limit`` is the time to read the weights of the experts in use at the measured bandwidth,
over the time taken; only meaningful for few rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.kernels.bench_linear import FLOATS, random_weights
from benchmarks.kernels.probe import measure_machine
from quire.core.model.moe_config import ExpertRouting
from quire.kernels.activation import ACTIVATIONS
from quire.kernels.cpu.backend import CpuBackend
from quire.kernels.cpu.linear import CpuLinear
from quire.kernels.cpu.native import native

#: name: (hidden size, experts, intermediate size of one, experts per row)
SHAPES = {"8 of 1408, top 2": (2048, 8, 1408, 2), "32 of 768, top 8": (2048, 32, 768, 8)}
SILU = ACTIVATIONS.index("silu")


class Layer:
    """One layer's experts, and both ways to multiply them.

    Args:
        shape: Of :data:`SHAPES`.
        dtype: A float type or the name of a rounding scheme.
    """

    def __init__(self, backend: CpuBackend, shape: str, dtype: str) -> None:
        self.width, self.num_experts, self.middle, self.top_k = SHAPES[shape]
        gate_up = random_weights(self.width, 2 * self.middle, dtype)
        down = random_weights(self.middle, self.width, dtype)
        held = dtype if dtype in FLOATS else "float32"
        self.gate_up = [CpuLinear(gate_up, [], held) for _ in range(self.num_experts)]
        self.down = [CpuLinear(down, [], held) for _ in range(self.num_experts)]
        self._grouped = backend.experts(
            [gate_up] * self.num_experts, [down] * self.num_experts, "silu", dtype=held
        )
        self._route = backend.route

    def routes(self, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return x (T, D), ids and weights (T, k)."""
        random = np.random.default_rng(rows)
        x = random.standard_normal((rows, self.width), dtype=np.float32)
        logits = random.standard_normal((rows, self.num_experts), dtype=np.float32)
        ids, weights = self._route(logits, ExpertRouting(top_k=self.top_k))
        return x, ids, weights

    def used_bytes(self, ids: np.ndarray) -> int:
        """Return the bytes of the experts in use."""
        return sum(self.gate_up[e].nbytes + self.down[e].nbytes for e in np.unique(ids))

    def at_once(self, x: np.ndarray, ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """All experts in one native call."""
        return self._grouped(x, ids, weights, np.empty_like(x))

    def one_by_one(self, x: np.ndarray, ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """A native call for each product of each expert."""
        rows, width = x.shape
        order = np.argsort(ids, axis=None, kind="stable").astype(np.int32)
        ends = np.cumsum(np.bincount(ids.ravel(), minlength=self.num_experts))
        grouped = np.empty((len(order), width), np.float32)
        native.gather_rows(x, rows, order // np.int32(self.top_k), len(order), width, grouped)
        hidden = np.empty((len(order), 2 * self.middle), np.float32)
        activated = np.empty((len(order), self.middle), np.float32)
        spans = [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        for linear, span in zip(self.gate_up, spans, strict=True):
            if span.start < span.stop:
                linear(grouped[span], hidden[span])
        native.gated_activation(hidden, SILU, len(order), self.middle, activated)
        for linear, span in zip(self.down, spans, strict=True):
            if span.start < span.stop:
                linear(activated[span], grouped[span])
        index = np.empty(len(order), np.int32)
        index[order] = np.arange(len(order), dtype=np.int32)
        out = np.empty_like(x)
        native.combine_experts(grouped, index, weights, rows, self.top_k, width, out)
        return out


def measure(backend: CpuBackend, dtype: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each shape and number of rows."""
    found = []
    limit = measure_machine(options.threads).read_bytes_per_second
    for shape in SHAPES:
        layer = Layer(backend, shape, dtype)
        for rows in options.rows:
            routes = layer.routes(rows)
            if not np.array_equal(layer.at_once(*routes), layer.one_by_one(*routes)):
                raise AssertionError(f"{shape}, {dtype}: both ways must give the same bits")
            calls: dict[str, Callable[[], Any]] = {
                "at_once": lambda layer=layer, routes=routes: layer.at_once(*routes),
                "one_by_one": lambda layer=layer, routes=routes: layer.one_by_one(*routes),
            }
            times = results.interleave(calls, repeats=options.repeats)
            seconds = times["at_once"]["median"]
            nbytes = layer.used_bytes(routes[1])
            operations = 6 * rows * layer.top_k * layer.width * layer.middle
            found.append(
                {
                    "shape": shape,
                    "dtype": dtype,
                    "rows": rows,
                    **times,
                    "speedup": times["one_by_one"]["median"] / seconds,
                    "gflops": operations / seconds / 1e9,
                    "of_read_limit": nbytes / limit / seconds,
                }
            )
            row = found[-1]
            print(
                f"{dtype:8} {shape:18} T={rows:<4} {seconds * 1e3:8.2f} ms at once, "
                f"{times['one_by_one']['median'] * 1e3:8.2f} one by one: {row['speedup']:.2f}x, "
                f"{row['gflops']:.0f} GFLOP/s, {row['of_read_limit']:.2f} of the read limit",
                flush=True,
            )
    return found


def main() -> None:
    """Run, print a line a case, write ``results/kernels_moe.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", choices=native.available_isas(), default=native.isa())
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "int4"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 512])
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    native.set_isa(options.isa)
    unknown = [name for name in options.dtype if name not in (*FLOATS, "int8", "int4", "nf4")]
    if unknown:
        parser.error(f"--dtype must be a float type, int8, int4 or nf4; got {unknown}")
    backend = CpuBackend(threads=options.threads)
    found = [row for dtype in options.dtype for row in measure(backend, dtype, options)]
    extra = {"threads": options.threads, "isa": native.isa()}
    print(results.write("kernels_moe", found, warmup=1, **extra).name)


if __name__ == "__main__":
    main()
