"""Files that say how much errors of each input of a matrix count, as llama.cpp writes and reads.

An importance is the mean square of an input over some text. Collecting it is not done here.

Source: llama.cpp's ``tools/imatrix`` and ``common/imatrix-loader.cpp``: a GGUF file with sums of
squares ``NAME.in_sum2`` (experts, K) and ``NAME.counts`` (experts, 1); the older ``.dat`` form.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from quire.checkpoints.gguf.gguf_file import MAGIC, GgufFile
from quire.checkpoints.gguf.gguf_layouts import LAYOUTS
from quire.checkpoints.gguf.gguf_writer import TensorPlan, write_gguf
from quire.core.errors import ModelLoadError
from quire.system.regular_files import TABLE_BYTES, open_regular, read_regular

log = logging.getLogger(__name__)

SUMS, COUNTS = ".in_sum2", ".counts"
#: Of a name in the older form.
MAX_NAME_BYTES = 256


@dataclass(frozen=True, slots=True)
class ImportanceEntry:
    """Importance of one tensor's inputs.

    Attributes:
        sums: (experts, K) float32, sums of the inputs' squares.
        counts: (experts,) float32, number of inputs.
    """

    sums: np.ndarray
    counts: np.ndarray

    @property
    def means(self) -> np.ndarray:
        """(experts, K) float32; 1 for an expert that saw nothing."""
        seen = self.counts[:, None] > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(seen, self.sums / self.counts[:, None], np.float32(1))


@dataclass(frozen=True, slots=True)
class ImportanceMatrix:
    """Importance of the inputs of a model's tensors.

    Attributes:
        path: The file, for messages.
        entries: Entries by the names that tensors have in a GGUF file.
        dataset: Name of the text that it was measured on.
        num_chunks, chunk_size: Number of chunks of that text, and tokens of each.
    """

    path: Path
    entries: Mapping[str, ImportanceEntry]
    dataset: str = ""
    num_chunks: int = 0
    chunk_size: int = 0

    def of_tensor(self, name: str, parts: int, columns: int) -> list[np.ndarray | None]:
        """Return (K,) float32 for each expert of a tensor, None where the file has none.

        Raises:
            ModelLoadError: The entry has another number of experts or inputs.
        """
        entry = self.entries.get(name)
        if entry is None:
            if name not in ("token_embd.weight", "output.weight"):
                log.warning("%s says nothing of %s; all inputs count alike", self.path, name)
            return [None] * parts
        if entry.sums.shape != (parts, columns):
            raise ModelLoadError(
                f"[convert] --imatrix must have {name} of {parts} x {columns} inputs; got "
                f"{' x '.join(map(str, entry.sums.shape))} in {self.path}. It is another model's."
            )
        return list(entry.means)


def read_importance_matrix(path: Path) -> ImportanceMatrix:
    """Read a file of either form.

    Raises:
        ModelLoadError: The file cannot be read, or is not an importance matrix.
    """
    try:
        with open_regular(path) as file:
            is_gguf = file.read(4) == MAGIC
    except OSError as error:
        raise _refuse(path, "be readable", error.strerror) from None
    found = _read_gguf(path) if is_gguf else _read_older(path)
    for name, entry in found.entries.items():
        counts, sums = entry.counts, entry.sums
        finite = np.isfinite(sums).all() and np.isfinite(counts).all()
        if not finite or sums.min() < 0 or counts.min() < 0:
            raise _refuse(path, "hold finite numbers >= 0", f"others for {name}")
    if not found.entries:
        raise _refuse(path, "hold sums of some tensor", "none")
    return found


def write_importance_matrix(path: Path, matrix: ImportanceMatrix) -> None:
    """Write the GGUF form, which ``llama-quantize --imatrix`` reads.

    Raises:
        OSError: The file cannot be written.
    """
    plans = []
    for name, entry in sorted(matrix.entries.items()):
        plans += [_plan(name + SUMS, entry.sums), _plan(name + COUNTS, entry.counts[:, None])]
    metadata = {
        "general.type": "imatrix",
        "imatrix.datasets": [matrix.dataset],
        "imatrix.chunk_count": matrix.num_chunks,
        "imatrix.chunk_size": matrix.chunk_size,
    }
    write_gguf(path, metadata, plans)


def _plan(name: str, values: np.ndarray) -> TensorPlan:
    data = np.ascontiguousarray(values, np.float32)
    return TensorPlan(name, LAYOUTS["F32"], data.shape, partial(iter, [data.tobytes()]))


def _read_gguf(path: Path) -> ImportanceMatrix:
    file = GgufFile(path)
    entries = {}
    for name in file.tensors:
        if not name.endswith(SUMS):
            continue
        stem = name.removesuffix(SUMS)
        if stem + COUNTS not in file.tensors:
            raise _refuse(path, f"have {stem}{COUNTS}", "none")
        sums = _floats(file, name)
        counts = _floats(file, stem + COUNTS).reshape(-1)
        sums = sums.reshape(-1, sums.shape[-1])
        if len(counts) != len(sums):
            raise _refuse(path, f"have a count for each expert of {stem}", len(counts))
        entries[stem] = ImportanceEntry(sums, counts)
    datasets = file.texts("imatrix.datasets")
    return ImportanceMatrix(
        path,
        entries,
        ", ".join(datasets),
        file.integer("imatrix.chunk_count", 0) or 0,
        file.integer("imatrix.chunk_size", 0) or 0,
    )


def _floats(file: GgufFile, name: str) -> np.ndarray:
    tensor = file.tensors[name]
    if tensor.layout.name != "F32":
        raise _refuse(file.path, f"hold {name} as F32", tensor.layout.name)
    return np.frombuffer(bytes(file.data(name)), np.float32).reshape(tensor.shape)


def _read_older(path: Path) -> ImportanceMatrix:
    """Read ``.dat``: sums are means times a number of calls, which is stored with them."""
    data = read_regular(path, TABLE_BYTES)
    numbers = _Numbers(path, data)
    entries = {}
    for _ in range(numbers.take()):
        name = numbers.text()
        calls, count = numbers.take(), numbers.take()
        sums = numbers.floats(count)
        entries[name] = ImportanceEntry(sums[None], np.array([max(calls, 1)], np.float32))
    chunks = numbers.take() if numbers.left >= 4 else 0
    dataset = numbers.text() if numbers.left >= 4 else ""
    return ImportanceMatrix(path, entries, dataset, chunks)


class _Numbers:
    """Reads little-endian numbers, never past the end."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path, self._data, self._at = path, data, 0

    @property
    def left(self) -> int:
        """Bytes that are not read."""
        return len(self._data) - self._at

    def take(self) -> int:
        """Read an int32 >= 0."""
        (value,) = struct.unpack("<i", self._bytes(4))
        if value < 0:
            raise _refuse(self._path, "be an importance matrix of llama.cpp", "another file")
        return int(value)

    def text(self) -> str:
        """Read a length and as many bytes of UTF-8."""
        length = self.take()
        if length > MAX_NAME_BYTES:
            raise _refuse(self._path, f"have names of at most {MAX_NAME_BYTES} bytes", length)
        try:
            return self._bytes(length).decode()
        except UnicodeDecodeError:
            raise _refuse(self._path, "have names in UTF-8", "others") from None

    def floats(self, count: int) -> np.ndarray:
        """Read float32 numbers."""
        return np.frombuffer(self._bytes(4 * count), np.float32)

    def _bytes(self, count: int) -> bytes:
        if count > self.left:
            raise _refuse(self._path, "be a whole importance matrix", f"{len(self._data)} bytes")
        self._at += count
        return self._data[self._at - count : self._at]


def _refuse(path: Path, rule: str, got: object) -> ModelLoadError:
    return ModelLoadError(f"[imatrix] {path} must {rule}; got {got}. Make it with quire imatrix.")
