"""Packed weights in a file, so that a later start maps them instead of packing again.

A file is named for what it was made of: the checkpoint's files (size, time of change, header,
samples), how weights are held, and the version of the layouts. It is checked whole before it is
used: damaged files are made again. Packing itself is the backend's business.

```
"QUIREPK5"  begin, size and checksum of the table (uint64 each)  padding to 4096
packed parts, each at a multiple of 4096
table: JSON, the file's name and linear -> parts (shape, form, place, checksum)
```
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Self

from quire.core.errors import ConfigError
from quire.kernels.backend import Backend
from quire.kernels.matrices.activation_scheme import ActivationScheme
from quire.kernels.matrices.nested_scales import NestedForm
from quire.kernels.matrices.quantized_tensor import QuantizedForm, RotationForm
from quire.kernels.packed_weights import PackedWeights
from quire.system.regular_files import open_regular

log = logging.getLogger(__name__)

MAGIC = b"QUIREPK5"
HEAD = struct.Struct("<8sQQQ")
ALIGNMENT = 4096
Checksums = Callable[[Any, Sequence[tuple[int, int]]], list[int]]
#: Bytes of a checkpoint's file that its name is made from, besides size and time: the first, where
#: headers are, and samples of the rest, since copies of other weights may have the same time.
HASHED_BYTES = 1 << 20
NUM_SAMPLES, SAMPLE_BYTES = 64, 1 << 14


def checkpoint_digest(path: Path, settings: str) -> str:
    """Return a digest that identifies a checkpoint and how it is held.

    Args:
        path: A folder or a file.
        settings: Everything else that decides what is packed.
    """
    digest = hashlib.sha256(settings.encode())
    for file in weight_files(path):
        status = file.stat()
        digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
        with open_regular(file) as stream:
            for part in samples(stream, status.st_size):
                digest.update(part)
    return digest.hexdigest()[:32]


def weight_files(path: Path) -> list[Path]:
    """Return the files of a checkpoint, a folder or a file."""
    return sorted(path.glob("*.safetensors")) if path.is_dir() else [path]


def samples(stream: BinaryIO, num_bytes: int) -> Iterator[bytes]:
    """Yield parts of a file by which those of two checkpoints differ, its beginning first."""
    yield stream.read(HASHED_BYTES)
    for number in range(1, NUM_SAMPLES + 1):
        stream.seek(max(0, num_bytes * number // NUM_SAMPLES - SAMPLE_BYTES))
        yield stream.read(SAMPLE_BYTES)


def open_packed_weights_cache(
    folder: str | None, path: Path, backend: Backend, settings: str
) -> PackedWeightsCache | None:
    """Return the packed weights of a checkpoint; None when no folder is given.

    Args:
        folder: Folder that they are kept in.
        path: The checkpoint, a folder or a file.
        backend: The backend that packs them.
        settings: Everything besides checkpoint and backend that decides what is packed.

    Raises:
        ConfigError: The backend packs nothing, or the folder cannot be made.
    """
    if folder is None:
        return None
    version = backend.packed_weights_version
    if version is None:
        raise ConfigError(
            f"[load] --packed-weights-cache needs --device cpu; got {backend.name}, which keeps "
            "weights as they are."
        )
    if not folder:
        raise ConfigError("[load] --packed-weights-cache must be a folder; got ''.")
    digest = checkpoint_digest(path, f"{version} {settings}")
    return PackedWeightsCache(Path(folder), digest, backend.checksums)


class PackedWeightsCache:
    """One file of packed weights, found or to be written.

    Args:
        folder: Folder of such files; made when it does not exist.
        digest: Digest of what the weights are made of, :func:`checkpoint_digest`.
        checksums: Function that returns 64 bits for each part (begin, bytes) of a buffer.

    Attributes:
        is_complete: Whether a whole file was found, so that :meth:`find` returns every part. It is
            certain after :meth:`wait`: until then a thread reads all parts.

    Raises:
        ConfigError: The folder cannot be made.
    """

    def __init__(self, folder: Path, digest: str, checksums: Checksums) -> None:
        self._digest = digest
        self._checksums = checksums
        self._table: dict[str, list[dict[str, Any]]] = {}
        self._out: BinaryIO | None = None
        try:
            folder = folder.expanduser()
            folder.mkdir(parents=True, exist_ok=True)
        except (OSError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
            raise ConfigError(
                f"[load] --packed-weights-cache must be a folder; got {folder}: {reason}."
            ) from None
        self._path = folder / f"{digest}.packed"
        self._map: mmap.mmap | None = None
        self._check: Future[None] | None = None
        self.is_complete = self._open()
        if not self.is_complete:
            self._create()

    def wait(self) -> None:
        """Wait until the file that was found is checked; a damaged one is made again."""
        if self._check is None:
            return
        try:
            self._check.result()
        except ValueError as error:
            self._tell_damage(error)
            self.is_complete = False
            self._create()
        else:
            log.info("packed weights are mapped from %s", self._path)

    def find(self, name: str) -> list[PackedWeights]:
        """Return the weights of linear ``name``, views of the mapped file."""
        assert self._map is not None
        view = memoryview(self._map)
        return [
            PackedWeights(
                names=tuple(entry["names"]),
                shape=tuple(entry["shape"]),
                dtype=entry["dtype"],
                form=_form(entry["form"]),
                data=view[entry["begin"] : entry["begin"] + entry["nbytes"]],
            )
            for entry in self._table[name]
        ]

    def add(self, name: str, packed: Sequence[PackedWeights]) -> None:
        """Write the weights of a linear; when writing fails, log it and keep no file."""
        if self._out is None:
            return
        try:
            self._table[name] = [self._write(self._out, weights) for weights in packed]
        except (OSError, ValueError) as error:
            self._give_up(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.discard()

    def finish(self) -> None:
        """Complete the file under its name."""
        if self._out is None:
            return
        table = json.dumps({"name": self._digest, "linears": self._table}).encode()
        try:
            begin = self._out.tell()
            self._out.write(table)
            self._out.seek(0)
            self._out.write(HEAD.pack(MAGIC, begin, len(table), self._checksum(table)))
            self._out.flush()
            os.fsync(self._out.fileno())
            self._out.close()
            self._part.replace(self._path)
        except OSError as error:
            self._give_up(error)
            return
        self._out = None
        log.info("packed weights are kept in %s for the next start", self._path)

    def discard(self) -> None:
        """Remove what was written, when loading failed."""
        if self._out is not None:
            # What is still buffered does not fit either where a write has failed.
            with suppress(OSError):
                self._out.close()
            self._part.unlink(missing_ok=True)
            self._out = None

    @property
    def _part(self) -> Path:
        return self._path.with_name(f"{self._path.name}.{os.getpid()}.part")

    def _open(self) -> bool:
        """Map the file, check its table and begin to check its parts."""
        try:
            with open_regular(self._path) as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            log.warning("%s cannot be mapped (%s): weights are packed again", self._path, error)
            return False
        try:
            self._table = self._checked_table(memoryview(self._map))
        except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
            self._tell_damage(error)
            return False
        self._check = Future()
        arguments = memoryview(self._map), self._table, self._check
        threading.Thread(target=self._check_parts, args=arguments, name="quire-checksums").start()
        return True

    def _tell_damage(self, error: Exception) -> None:
        log.warning("%s is damaged (%s): weights are packed again", self._path, error)
        self._map = None
        self._table = {}

    def _checked_table(self, view: memoryview) -> dict[str, list[dict[str, Any]]]:
        magic, begin, size, checksum = HEAD.unpack(view[: HEAD.size])
        if magic != MAGIC or begin + size != len(view):
            raise ValueError("it is cut off or of another format")
        text = bytes(view[begin : begin + size])
        if self._checksum(text) != checksum:
            raise ValueError("its table has another checksum")
        found = json.loads(text)
        if found["name"] != self._digest:
            raise ValueError("it is of another checkpoint or other settings")
        table: dict[str, list[dict[str, Any]]] = found["linears"]
        for name, entry in _parts(table):
            end = entry["begin"] + entry["nbytes"]
            if entry["begin"] < ALIGNMENT or end > begin or entry["begin"] % ALIGNMENT:
                raise ValueError(f"{name} lies outside")
        return table

    def _check_parts(
        self, view: memoryview, table: dict[str, list[dict[str, Any]]], check: Future[None]
    ) -> None:
        try:
            # In one call, without the interpreter's lock: the thread that reads the tokenizer
            # meanwhile keeps it for long.
            found = self._checksums(view, [(e["begin"], e["nbytes"]) for _, e in _parts(table)])
            for (name, entry), checksum in zip(_parts(table), found, strict=True):
                if checksum != entry["checksum"]:
                    raise ValueError(f"{name} has another checksum")
            check.set_result(None)
        except BaseException as error:
            check.set_exception(error)

    def _checksum(self, data: Any) -> int:
        return self._checksums(data, [(0, memoryview(data).nbytes)])[0]

    def _create(self) -> None:
        try:
            self._out = self._part.open("w+b")
            self._out.write(bytes(ALIGNMENT))
        except OSError as error:
            self._give_up(error)

    def _write(self, out: BinaryIO, weights: PackedWeights) -> dict[str, Any]:
        begin, nbytes = out.tell(), weights.data.nbytes
        out.write(weights.data)
        out.write(bytes(-nbytes % ALIGNMENT))
        return {
            "names": weights.names,
            "shape": weights.shape,
            "dtype": weights.dtype,
            "form": None if weights.form is None else asdict(weights.form),
            "begin": begin,
            "nbytes": nbytes,
            "checksum": self._checksum(weights.data),
        }

    def _give_up(self, error: Exception) -> None:
        log.warning("%s cannot be written (%s): weights are not kept", self._path, error)
        self.discard()


def _parts(table: dict[str, list[dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    return [(name, entry) for name, entries in table.items() for entry in entries]


def _form(fields: dict[str, Any] | None) -> QuantizedForm | None:
    if fields is None:
        return None
    book, nested, rotation = fields["code_book"], fields["nested"], fields["rotation"]
    rule = fields["activations"]
    made = {
        "code_book": None if book is None else tuple(book),
        "nested": None if nested is None else NestedForm(tuple(nested["table"]), nested["run"]),
        "rotation": None if rotation is None else RotationForm(**rotation),
        "activations": None if rule is None else ActivationScheme(**rule),
    }
    return QuantizedForm(**{**fields, **made})
