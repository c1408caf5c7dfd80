"""What it costs to round activations in larger groups: logits by how many inputs share a scale.

    python -m benchmarks.activation_groups [SMOLLM2.gguf with float weights]

Why ``QuantizedWeights::activation_inputs`` (native/include/quantized.h) is what it is. Weights are
rounded as ``--quantization`` does; activations are rounded here, in numpy, before kernels that keep
them exact. All is compared with float32; 0 stands for exact activations.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import quality, results
from quire.kernels.cpu.backend import CpuBackend
from quire.kernels.cpu.linear import CpuLinear
from quire.models.hub import resolve_model

SCHEMES = {
    "int8 g32": ("int8", 32),
    "int8 g128": ("int8", 128),
    "int4 g32": ("int4", 32),
    "int4 g64": ("int4", 64),
    "int4 g128": ("int4", 128),
    "nf4 g64": ("nf4", 64),
}
SIZES = (0, 32, 64, 128, 256)


def rounded(x: np.ndarray, size: int) -> np.ndarray:
    """Round each ``size`` inputs of x (T, K) float32 to 8 bits and back."""
    groups = np.pad(x, ((0, 0), (0, -x.shape[1] % size))).reshape(len(x), -1, size)
    most = np.abs(groups).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most >= 1e-30)
    values = np.rint(groups * inverse) * (most / np.float32(127))
    return np.ascontiguousarray(values.reshape(len(x), -1)[:, : x.shape[1]])


class RoundedLinear(CpuLinear):
    """Quantized weights round what they are given, ``size`` inputs at a time."""

    size = 0

    def __call__(self, x: np.ndarray, *arguments: Any, **named: Any) -> np.ndarray:
        if self.size and all(packed.form is not None for packed in self.packed):
            x = rounded(x, self.size)
        return super().__call__(x, *arguments, **named)


def rounding_backend(size: int) -> CpuBackend:
    """Return a backend with such linears; 0 rounds nothing."""
    linear = type("RoundedLinear", (RoundedLinear,), {"size": size})
    return type("RoundingBackend", (CpuBackend,), {"linear": linear})(threads=2)


def measure(path: Path, windows: np.ndarray) -> list[dict[str, Any]]:
    """Return the figures of one model, a row for each scheme and size."""
    exact, rows = quality.quire_logits(path, windows, {"dtype": "float32"}), []
    for name, (scheme, group) in SCHEMES.items():
        settings = {
            "dtype": "float32",
            "quantization": scheme,
            "quantization_group_size": group,
            "activations": "fp32",
        }
        for size in SIZES:
            logits = quality.quire_logits(path, windows, settings, rounding_backend(size))
            row = {"weights": name, "inputs": size, **quality.compare(logits, exact, windows)}
            print(f"{name:10} {size:4}  KL {row['kl']:.6f}  perplexity {row['perplexity']:.4f}")
            rows.append(row)
    return rows


def main() -> None:
    """Measure, print and write the result file."""
    tiny = resolve_model("quire-tiny")
    found = {"quire-tiny": measure(tiny, quality.tiny_windows(tiny))}
    for name in sys.argv[1:]:
        path = Path(name)
        found["smollm2"] = measure(path, quality.text_windows(path, *quality.REAL_WINDOWS))
    results.write("activation_groups", found)


if __name__ == "__main__":
    main()
