"""Record what llama.cpp's quantizer makes of quire-tiny, for tests of our own files.

    python -m tools.quantized_fixtures.make_llama_quantize LLAMA_QUANTIZE

``LLAMA_QUANTIZE`` is llama.cpp's program ``llama-quantize``. Written are the types that its mixes
give each tensor, and how far a matrix is from what it was in each type, with an importance of
inputs and without.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from quire.checkpoints.gguf.gguf_file import GgufFile
from quire.checkpoints.gguf.gguf_types import dequantize
from quire.checkpoints.gguf.importance_matrix import (
    ImportanceEntry,
    ImportanceMatrix,
    write_importance_matrix,
)

MIXES = (
    "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "IQ4_NL",
    "IQ4_XS", "IQ3_S", "IQ3_M", "TQ1_0",
)  # fmt: skip
#: Those that it makes with an importance only.
NEEDY_MIXES = ("IQ3_XXS", "IQ3_XS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ1_S", "IQ1_M")
#: What the program calls types, by our names of them.
PURE = {
    "Q2_K": "Q2_K", "Q3_K": "Q3_K_S", "Q4_K": "Q4_K_S", "Q5_K": "Q5_K_S", "Q6_K": "Q6_K",
    "IQ4_NL": "IQ4_NL", "IQ4_XS": "IQ4_XS", "Q4_0": "Q4_0", "Q4_1": "Q4_1", "Q5_0": "Q5_0",
    "Q5_1": "Q5_1", "Q8_0": "Q8_0", "IQ3_S": "IQ3_S", "TQ1_0": "TQ1_0", "TQ2_0": "TQ2_0",
}  # fmt: skip
NEEDY_PURE = {
    "IQ3_XXS": "IQ3_XXS", "IQ2_S": "IQ2_M", "IQ2_XS": "IQ2_XS", "IQ2_XXS": "IQ2_XXS",
    "IQ1_M": "IQ1_M", "IQ1_S": "IQ1_S",
}  # fmt: skip
MATRIX = "blk.1.ffn_gate.weight"
OUT = Path(__file__).parents[2] / "tests/quantization/producers/llama_quantize.json"


def importance(columns: int) -> np.ndarray:
    """Return how much errors of inputs of :data:`MATRIX` count: (K,) float32, always the same."""
    return np.random.default_rng(0).lognormal(0, 1, columns).astype(np.float32)


def weighted_error(values: np.ndarray, want: np.ndarray, counts: np.ndarray) -> float:
    """Return the weighted mean square of differences as a share of that of ``want``."""
    rest = values.astype(np.float64) - want
    return float((counts * rest * rest).sum() / (counts * want.astype(np.float64) ** 2).sum())


def _matrix(path: Path) -> np.ndarray:
    file = GgufFile(path)
    tensor = file.tensors[MATRIX]
    rows = np.frombuffer(bytes(file.data(MATRIX)), np.uint8).reshape(tensor.shape[0], -1)
    return dequantize(tensor.layout.name, rows)


def main() -> None:
    program = sys.argv[1]
    mixes, errors = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        source, made, matrix = (Path(folder) / name for name in ("f32.gguf", "made.gguf", "i.gguf"))
        convert = [sys.executable, "-m", "quire.cli.main", "convert", "quire-tiny", str(source)]
        subprocess.run([*convert, "--type", "f32"], check=True)
        want = _matrix(source)
        counts = importance(want.shape[1])
        entries = {
            name: ImportanceEntry(np.resize(counts, (1, tensor.shape[-1])), np.ones(1, np.float32))
            for name, tensor in GgufFile(source).tensors.items()
            if len(tensor.shape) == 2
        }
        write_importance_matrix(matrix, ImportanceMatrix(matrix, entries, "none", 1, 1))

        def run(kind: str, *options: str) -> None:
            command = [program, *options, str(source), str(made), kind]
            subprocess.run(command, check=True, capture_output=True)

        for mix in MIXES + NEEDY_MIXES:
            run(mix, *(("--imatrix", str(matrix)) if mix in NEEDY_MIXES else ()))
            tensors = GgufFile(made).tensors
            mixes[mix] = {name: tensor.layout.name for name, tensor in tensors.items()}
        for name, kind in (PURE | NEEDY_PURE).items():
            run(kind, "--pure", "--imatrix", str(matrix))
            errors[name] = {"importance": weighted_error(_matrix(made), want, counts)}
            if name in PURE:
                run(kind, "--pure")
                errors[name]["plain"] = weighted_error(_matrix(made), want, np.ones_like(counts))
    OUT.write_text(json.dumps({"mixes": mixes, "errors": errors}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
