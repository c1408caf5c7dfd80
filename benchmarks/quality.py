"""What rounding costs: perplexity of quire-tiny and the error of logits, by how weights are held.

    python -m benchmarks.quality [--peer-python PEER_VENV/bin/python] [FOLDER FILE.gguf ...]
    python -m benchmarks.quality --smollm2 [--peer-python ...]   # after quire pull smollm2

quire-tiny is trained, so its perplexity on held-out text means something. A FOLDER of random
weights in a true shape, followed by its GGUF files, shows the error of logits at that size. All is
compared with float32; GGUF files also with what llama.cpp makes of the same file. smollm2, a real
model of which there is one file, is compared with its own weights under exact activations.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import results
from quire.checkpoints.gguf.gguf_file import is_gguf
from quire.checkpoints.gguf.gguf_writer import write_gguf
from quire.kernels.backend import Backend
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.registry import create_backend
from quire.models.gguf.gguf_export import GgufExport
from quire.models.loader import load_model
from quire.quantization.quantization_plan import create_plan
from quire.settings.config import ModelOptions
from quire.store.hub import find_model, resolve_model
from quire.text.tokenizers.tokenizer import load_tokenizer
from tools.quire_tiny.heldout import SEED, heldout_text

BLOCK = 16
TINY_WINDOW, TINY_WINDOWS = 512, 8
SHAPE_WINDOW = 96
#: (windows, tokens) of smollm2, whose vocabulary is large.
REAL_WINDOWS = (28, 256)
PEER = Path(__file__).parent / "peers" / "llama_cpp_logits.py"
#: Name to settings of a model that is rounded at load.
ROUNDED: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "int8 g32": {"quantization": "int8"},
    "int6 g32": {"quantization": "int6"},
    "int5 g32": {"quantization": "int5"},
    "int4 g32": {"quantization": "int4"},
    "int4 g128": {"quantization": "int4", "quantization_group_size": 128},
    "nf4 g64": {"quantization": "nf4"},
    "int3 g32": {"quantization": "int3"},
    "int2 g32": {"quantization": "int2"},
}
SHAPE_ROUNDED = ("bfloat16", "int8 g32", "int4 g32", "nf4 g64")
GGUF_TYPES = ("F16", "Q8_0", "Q4_0", "Q4_1")


@dataclass(frozen=True, slots=True)
class Case:
    """One way to hold a model, and its logits.

    Attributes:
        name: For the table.
        engine: ``quire`` or ``llama.cpp``.
        path: Folder or file.
        settings: Of the model, ``float32`` unless named, and ``kv_cache_dtype``.
    """

    name: str
    engine: str
    path: Path
    settings: dict[str, Any]


def quire_logits(
    path: Path, windows: np.ndarray, settings: dict[str, Any], backend: Backend | None = None
) -> np.ndarray:
    """Return (windows, tokens, V) float32 of windows (windows, tokens), each starting anew."""
    backend = backend or create_backend("cpu", threads=2)
    settings = dict(settings)
    kv_dtype = settings.pop("kv_cache_dtype", "auto")
    options = ModelOptions(**settings)
    count, length = windows.shape
    dtype = str(settings.get("dtype", "auto" if is_gguf(path) else "float32"))
    model = load_model(
        path, backend, dtype=dtype, plan=create_plan(options), max_model_len=length + BLOCK
    )
    config = model.config
    kv_dtype = config.dtype if kv_dtype == "auto" else kv_dtype
    spec = config.kv_cache_spec(BLOCK, kv_dtype)
    blocks = -(-length // BLOCK)
    cache = backend.kv_cache(spec, blocks + 1)
    logits = np.empty((count, length, config.vocab_size), np.float32)
    for i, window in enumerate(windows):
        batch = ForwardBatch(
            input_ids=window.astype(np.int32),
            positions=np.arange(length, dtype=np.int32),
            slot_mapping=np.arange(BLOCK, BLOCK + length, dtype=np.int64),
            block_tables=np.arange(1, blocks + 1, dtype=np.int32)[None],
            query_start_loc=np.array([0, length], np.int32),
            seq_lens=np.array([length], np.int32),
            logits_indices=np.arange(length, dtype=np.int32),
        )
        logits[i] = model.logits(model.forward(batch, cache))
    return logits


def peer_logits(python: str, path: Path, windows: np.ndarray, threads: int = 2) -> np.ndarray:
    """Return llama.cpp's logits of the same windows."""
    with tempfile.TemporaryDirectory() as temporary:
        tokens, out = Path(temporary) / "tokens.npy", Path(temporary) / "logits.npy"
        np.save(tokens, windows.astype(np.int32))
        command = [python, str(PEER), str(path), str(tokens), str(out), str(threads)]
        subprocess.run(command, check=True, capture_output=True, env={"PATH": "/usr/bin:/bin"})
        return np.load(out)


def compare(logits: np.ndarray, exact: np.ndarray, windows: np.ndarray) -> dict[str, float]:
    """Return the figures of one case.

    Returns:
        ``error``: root mean square difference of logits over their deviation, rows centred;
        ``kl``: mean Kullback-Leibler divergence from float32's distribution, nats;
        ``top1``: share of rows with the same best token; ``perplexity`` of the windows' tokens.
    """
    totals = {"difference": 0.0, "size": 0.0, "kl": 0.0, "same": 0, "loss": 0.0}
    for ours, theirs, window in zip(logits, exact, windows, strict=True):
        a, b = (_log_softmax(part.astype(np.float64)) for part in (ours, theirs))
        centred = [part - part.mean(axis=-1, keepdims=True) for part in (a, b)]
        totals["difference"] += float(((centred[0] - centred[1]) ** 2).sum())
        totals["size"] += float((centred[1] ** 2).sum())
        totals["kl"] += float((np.exp(b) * (b - a)).sum())
        totals["same"] += int((a.argmax(axis=-1) == b.argmax(axis=-1)).sum())
        totals["loss"] -= float(a[np.arange(len(a) - 1), window[1:]].sum())
    rows = logits.shape[0] * logits.shape[1]
    predicted = logits.shape[0] * (logits.shape[1] - 1)
    return {
        "error": float(np.sqrt(totals["difference"] / totals["size"])),
        "kl": totals["kl"] / rows,
        "top1": totals["same"] / rows,
        "perplexity": float(np.exp(totals["loss"] / predicted)),
    }


def _log_softmax(values: np.ndarray) -> np.ndarray:
    values -= values.max(axis=-1, keepdims=True)
    values -= np.log(np.exp(values).sum(axis=-1, keepdims=True))
    return values


def tiny_windows(folder: Path) -> np.ndarray:
    """Return the first windows of the held-out text."""
    return text_windows(folder, TINY_WINDOWS, TINY_WINDOW)


def text_windows(path: Path, count: int, length: int) -> np.ndarray:
    """Return at most ``count`` windows of the held-out text in a model's tokens."""
    ids = load_tokenizer(path).encode(heldout_text(SEED))
    count = min(count, len(ids) // length)
    return np.array(ids[: count * length], np.int32).reshape(count, length)


def measure_smollm2(console: Console, peer: str) -> None:
    """Measure smollm2 and write a result file of its own.

    Raises:
        SystemExit: It was never pulled.
    """
    path = find_model("smollm2")
    if path is None:
        raise SystemExit("[quality] skipped: smollm2 is not on this machine. quire pull smollm2.")
    windows = text_windows(path, *REAL_WINDOWS)
    exact = quire_logits(path, windows, {"activations": "fp32", "dtype": "float32"})
    reference = {"weights": "GGUF Q4_1, --activations fp32 --dtype float32", "engine": "quire"}
    rows = [reference | compare(exact, exact, windows)]
    brief = Case("GGUF Q4_1, bfloat16 KV", "quire", path, {"kv_cache_dtype": "bfloat16"})
    cases = chain(gguf_cases("Q4_1", path, bool(peer)), [brief])
    rows += measure(cases, exact, windows, peer)
    print_table(console, "smollm2", rows, True)
    results.write("quality_smollm2", rows, windows=REAL_WINDOWS)


def tiny_cases(folder: Path, root: Path, has_peer: bool) -> Iterator[Case]:
    """Yield quire-tiny rounded at load and as files of our converter."""
    for name, settings in ROUNDED.items():
        yield Case(name, "quire", folder, settings)
    for type_name in GGUF_TYPES:
        path = root / f"{type_name}.gguf"
        export = GgufExport(folder, type_name)
        write_gguf(path, export.metadata | _vocabulary(folder, export), export.tensors)
        yield from gguf_cases(type_name, path, has_peer)


def _vocabulary(folder: Path, export: GgufExport) -> dict[str, Any]:
    from quire.text.tokenizers.gguf_vocabulary import gguf_vocabulary

    return gguf_vocabulary(folder, export.config.vocab_size)


def gguf_cases(name: str, path: Path, has_peer: bool) -> Iterator[Case]:
    """Yield a file in Quire, with activations of 8 bits, of 16 and exact, and in llama.cpp."""
    yield Case(f"GGUF {name}", "quire", path, {})
    if name.upper() not in ("F32", "F16", "BF16"):
        yield Case(f"GGUF {name}, --activations int16", "quire", path, {"activations": "int16"})
        yield Case(f"GGUF {name}, --activations fp32", "quire", path, {"activations": "fp32"})
    if has_peer:
        yield Case(f"GGUF {name}", "llama.cpp", path, {})


def measure(cases: Iterator[Case], exact: np.ndarray, windows: np.ndarray, peer: str) -> list[Any]:
    """Return the rows of one model."""
    rows = []
    for case in cases:
        if case.engine == "quire":
            logits = quire_logits(case.path, windows, case.settings)
        else:
            logits = peer_logits(peer, case.path, windows)[:, :, : exact.shape[2]]
        figures = compare(logits, exact, windows)
        rows.append({"weights": case.name, "engine": case.engine, **figures})
    return rows


def print_table(console: Console, title: str, rows: list[Any], trained: bool) -> None:
    """Print the rows of one model."""
    table = Table("weights", "engine", "logit error", "KL, nats", "same best token", title=title)
    if trained:
        table.add_column("perplexity")
    for row in rows:
        cells = [f"{row['error']:.2%}", f"{row['kl']:.5f}", f"{row['top1']:.1%}"]
        cells += [f"{row['perplexity']:.4f}"] if trained else []
        table.add_row(row["weights"], row["engine"], *cells)
    console.print(table)


def shapes_of(paths: list[Path]) -> dict[Path, list[Path]]:
    """Return the files after each folder.

    Raises:
        ValueError: A path is neither, or a file has no folder before it.
    """
    shapes: dict[Path, list[Path]] = {}
    files: list[Path] | None = None
    for path in paths:
        if path.is_dir():
            files = shapes[path] = []
        elif files is not None and is_gguf(path):
            files.append(path)
        else:
            raise ValueError(f"{path} must be a folder, or a GGUF file after its folder")
    return shapes


def main() -> None:
    """Measure, print and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--peer-python", default="")
    parser.add_argument("--smollm2", action="store_true", help="that model alone")
    arguments = parser.parse_args()
    try:
        shapes = shapes_of(arguments.paths)
    except ValueError as error:
        parser.error(str(error))
    if arguments.peer_python and shutil.which(arguments.peer_python) is None:
        parser.error(f"--peer-python must be a program; got {arguments.peer_python}")
    console, found = Console(), {}
    if arguments.smollm2:
        measure_smollm2(console, arguments.peer_python)
        return
    folder = resolve_model("quire-tiny")
    windows = tiny_windows(folder)
    exact = quire_logits(folder, windows, {})
    with tempfile.TemporaryDirectory() as temporary:
        cases = tiny_cases(folder, Path(temporary), bool(arguments.peer_python))
        rows = measure(cases, exact, windows, arguments.peer_python)
    reference = {"weights": "float32", "engine": "quire", **compare(exact, exact, windows)}
    found["quire-tiny"] = [reference, *rows]
    print_table(console, "quire-tiny", found["quire-tiny"], True)
    for shape, files in shapes.items():
        random = np.random.default_rng(0)
        exact = quire_logits(shape, np.zeros((1, 1), np.int32), {})
        windows = random.integers(0, exact.shape[2], (1, SHAPE_WINDOW), np.int32)
        exact = quire_logits(shape, windows, {})
        cases = [Case(name, "quire", shape, ROUNDED[name]) for name in SHAPE_ROUNDED]
        for path in files:
            name = path.stem.rpartition(".")[2]
            cases += gguf_cases(name, path, bool(arguments.peer_python))
        found[shape.name] = measure(iter(cases), exact, windows, arguments.peer_python)
        print_table(console, shape.name, found[shape.name], False)
    path = results.write(
        "quality",
        found,
        windows={"quire-tiny": [TINY_WINDOWS, TINY_WINDOW], "shapes": [1, SHAPE_WINDOW]},
    )
    console.print(f"written to {path.name}")


if __name__ == "__main__":
    main()
