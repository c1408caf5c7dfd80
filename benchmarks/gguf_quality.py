"""GGUF files of ``quire convert`` next to those of ``llama-quantize``, by type and on quire-tiny.

    scripts/bench gguf_quality LLAMA_QUANTIZE

Both have the same importance of inputs. Perplexity and divergence from the checkpoint are of a
held-out text that is longer than the one that lies with the model; the ratio of perplexities is
paired, window by window. Weighted errors are those of all matrices together.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from benchmarks import results
from quire.checkpoints.gguf.gguf_file import GgufFile
from quire.checkpoints.gguf.gguf_types import dequantize
from quire.checkpoints.gguf.importance_matrix import ImportanceMatrix, read_importance_matrix
from quire.cli.main import cli
from quire.store.hub import resolve_model
from tools.quire_tiny.heldout import heldout_text

MODEL = "quire-tiny"
TYPES = (
    "q6_k", "q5_k_m", "q4_k_m", "q4_k_s", "iq4_nl", "iq4_xs", "q3_k_m", "q3_k_s", "iq3_m", "iq3_s",
    "iq3_xxs", "q2_k", "iq2_m", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s",
)  # fmt: skip
#: Of the text's documents, and how long it is.
SEED, TEXT_BYTES = 99, 120_000


def run(*arguments: object) -> None:
    """Run a command of Quire.

    Raises:
        SystemExit: It failed.
    """
    done = CliRunner().invoke(cli, [str(word) for word in arguments], catch_exceptions=False)
    if done.exit_code:
        raise SystemExit(done.output)


def compare(file: Path, reference: object, text: Path, report: Path) -> dict[str, Any]:
    """Return what ``quire eval`` says of a file next to another model."""
    run("eval", file, "--reference", reference, "--perplexity", text, "--output", report)
    found: dict[str, Any] = json.loads(report.read_text())["comparison"]
    return found


def weighted_error(file: Path, source: Path, matrix: ImportanceMatrix) -> float:
    """Return the weighted sum of squares of all matrices' errors as a share of the weights' own."""
    made, exact = GgufFile(file), GgufFile(source)
    rest = whole = 0.0
    for name, entry in matrix.entries.items():
        got, want = (_rows(part, name) for part in (made, exact))
        counts = entry.means[0].astype(np.float64)
        rest += float((counts * (got - want) ** 2).sum())
        whole += float((counts * want**2).sum())
    return rest / whole


def _rows(file: GgufFile, name: str) -> np.ndarray:
    tensor = file.tensors[name]
    rows = np.frombuffer(bytes(file.data(name)), np.uint8).reshape(tensor.shape[0], -1)
    return dequantize(tensor.layout.name, rows).astype(np.float64)


def measure(quantize: str, types: list[str], folder: Path) -> list[dict[str, Any]]:
    """Make both files of each type and judge them.

    Args:
        quantize: The program ``llama-quantize``.
        types: By their names in ``quire convert``.
        folder: For files.
    """
    source, matrix, text = (folder / name for name in ("f32.gguf", "matrix.gguf", "text.txt"))
    text.write_text(heldout_text(SEED, TEXT_BYTES))
    run("convert", MODEL, source, "--type", "f32")
    calibration = resolve_model(MODEL) / "eval" / "calibration.jsonl"
    run("imatrix", MODEL, matrix, "--calibration", calibration)
    importance = read_importance_matrix(matrix)
    rows = []
    for name in types:
        ours, theirs, report = (folder / f"{name}.{part}" for part in ("o", "t", "json"))
        run("convert", MODEL, ours, "--type", name, "--imatrix", matrix)
        command = [quantize, "--imatrix", str(matrix), str(source), str(theirs), name]
        subprocess.run(command, check=True, capture_output=True)
        row: dict[str, Any] = {"type": name}
        for maker, file in (("ours", ours), ("llama.cpp", theirs)):
            found = compare(file, MODEL, text, report)
            row[maker] = {
                "bytes": file.stat().st_size,
                "weighted_error": weighted_error(file, source, importance),
                "perplexity": found["perplexity"],
                "ratio_to_checkpoint": found["ratio"],
                "divergence": found["divergence"],
            }
        row["ratio"] = compare(ours, theirs, text, report)["ratio"]
        rows.append(row)
        print(_line(row), flush=True)
    return rows


def _line(row: dict[str, Any]) -> str:
    ours, theirs, ratio = row["ours"], row["llama.cpp"], row["ratio"]
    figures = [
        f"{part['perplexity']['value']:.4f} / {1000 * part['divergence']['value']:.2f}"
        for part in (ours, theirs)
    ]
    error = ours["weighted_error"] / theirs["weighted_error"]
    interval = f"{ratio['value']:.4f} ({ratio['low']:.4f} to {ratio['high']:.4f})"
    return f"| {row['type']} | {figures[0]} | {figures[1]} | {interval} | {error:.2f} |"


def main() -> None:
    """Print a table and write ``results/gguf_quality_quire-tiny.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("llama_quantize")
    parser.add_argument("--type", nargs="+", choices=TYPES, default=list(TYPES))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(options.llama_quantize, options.type, Path(folder))
    text = {"seed": SEED, "bytes": TEXT_BYTES}
    print(results.write(f"gguf_quality_{MODEL}", rows, model=MODEL, text=text))


if __name__ == "__main__":
    main()
