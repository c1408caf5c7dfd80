"""One GGUF file: metadata and places of tensors, every count and offset checked before it is used.

It knows no array library; what the tensors' bits mean is in
:mod:`quire.checkpoints.gguf.gguf_types`, what the metadata means in
:mod:`quire.models.gguf.gguf_config` and :mod:`quire.text.tokenizers.gguf_tokenizer`.

```
"GGUF"  version  number of tensors  number of entries
entries: key, type, value           (strings and arrays have their length before them)
tensors: name, number of dims, dims (fastest first), type, offset
padding to the alignment, then the tensors' bytes at their offsets
```

Source: the format's description in the ggml repository (docs/gguf.md).
"""

from __future__ import annotations

import array
import math
import mmap
import os
import struct
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.checkpoints.gguf.gguf_layouts import LAYOUT_BY_CODE, LAYOUTS, OTHER_TYPES, BlockLayout
from quire.checkpoints.mapped_pages import release_pages
from quire.core.errors import ModelLoadError
from quire.kernels.cpu.native import native
from quire.system.regular_files import open_regular

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_DIMS = 4
MAX_NAME_BYTES = 255
#: Arrays in arrays; nothing real has any.
MAX_DEPTH = 4
#: Metadata and tensor list together. The largest vocabularies take about 20 MB.
MAX_HEADER_BYTES = 256 << 20
#: Fewest bytes of an entry (key length, key, type, value) and of a tensor's description.
MIN_ENTRY_BYTES = 8 + 1 + 4 + 1
MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8

#: What stands for "no such token" where an id is expected.
NO_TOKEN = 2**32 - 1

#: Type numbers of metadata values. Scalars: how struct and array name them.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
BOOL, STRING, ARRAY = 7, 8, 9
#: Fewest bytes of an element of an array.
MIN_BYTES = {
    **{kind: struct.calcsize(code) for kind, code in SCALARS.items()},
    BOOL: 1,
    STRING: 8,
    ARRAY: 12,
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor's type, shape and place in the file.

    Attributes:
        layout: Layout of its type.
        shape: Row-major; the last dim is a whole number of the layout's blocks.
        begin, end: Bytes ``[begin, end)`` of the file.
    """

    layout: BlockLayout
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.end - self.begin


def is_gguf(path: Path) -> bool:
    """Whether ``path`` is a file that begins as GGUF files do, or is named so."""
    if not path.is_file():
        return False
    if path.suffix == ".gguf":
        return True
    with open_regular(path) as file:
        return file.read(4) == MAGIC


class GgufHeader(ABC):
    """Metadata and tensors of a file.

    Attributes:
        path: The file.
        metadata: Key to value: int, float, bool, str, or a list or ``array.array`` of them.
        tensors: Name to place.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]

    @abstractmethod
    def data(self, name: str) -> memoryview:
        """Return the bytes of a tensor."""

    def error(self, key: str, rule: str) -> ModelLoadError:
        """Return the error that the value of ``key`` breaks ``rule``."""
        return damaged(self.path, f"{key} {rule}", _shown(self.metadata.get(key)))

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string; without a default it is required."""
        value = self.metadata.get(key, default)
        if not isinstance(value, str):
            raise self.error(key, "must be a string")
        return value

    @property
    def num_drafting_blocks(self) -> int:
        """The last blocks of the model that draft further tokens, which the model does without."""
        return self.integer(f"{self.text('general.architecture')}.nextn_predict_layers", 0) or 0

    def integer(self, key: str, default: int | None = None) -> int | None:
        """Return an integer >= 0, or ``default``."""
        value = self.metadata.get(key, default)
        if value is not None and (type(value) is not int or value < 0):
            raise self.error(key, "must be an integer >= 0")
        return value

    def token_id(self, key: str, default: int | None = None) -> int | None:
        """Return the id of a special token, or ``default`` where there is none or :data:`NO_TOKEN`.

        Source: llama.cpp, whose null token -1 becomes that where a file stores ids as uint32.
        """
        value = self.integer(key, default)
        return default if value == NO_TOKEN else value

    def boolean(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.metadata.get(key, default)
        if type(value) is not bool:
            raise self.error(key, "must be true or false")
        return value

    def texts(self, key: str) -> list[str]:
        """Return a list of strings, empty when absent."""
        value = self.metadata.get(key, [])
        if not isinstance(value, list) or not set(map(type, value)) <= {str}:
            raise self.error(key, "must be a list of strings")
        return value

    def numbers(self, key: str) -> list[Any]:
        """Return a list of numbers, empty when absent."""
        value = self.metadata.get(key, [])
        if not isinstance(value, array.array) and value != []:
            raise self.error(key, "must be a list of numbers")
        return list(value)


class GgufFile(GgufHeader):
    """A mapped file; tensors are not read before their bytes are.

    Attributes:
        path: The file.
        version: 2 or 3.
        metadata: Key to value: int, float, bool, str, or a list or ``array.array`` of them.
        tensors: Name to place.

    Raises:
        ModelLoadError: The file cannot be read, or any part of its header is wrong.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
                if size < 24:
                    raise damaged(path, "must begin with a header of 24 bytes", f"{size} bytes")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelLoadError(f"[load] {path} must be readable; got {error.strerror}.") from None
        header = _Header(path, self._map)
        self.version = header.version
        self.metadata = header.metadata
        self.tensors = header.tensors

    def data(self, name: str) -> memoryview:
        """Return the bytes of a tensor; its pages stay resident until :meth:`release`."""
        tensor = self.tensors[name]
        return memoryview(self._map)[tensor.begin : tensor.end]

    def release(self, name: str) -> None:
        """Give the pages of a tensor back; reading it again maps them again."""
        tensor = self.tensors[name]
        release_pages(self._map, tensor.begin, tensor.end)


#: The file opened last, with what it was then: a start asks for the same one several times, and
#: a large vocabulary takes a tenth of a second to read.
_latest: tuple[tuple[object, ...], GgufFile] | None = None


def open_gguf(path: Path) -> GgufFile:
    """Open a file, or return the one opened last if it is the same and unchanged.

    Raises:
        ModelLoadError: The file cannot be read, or is damaged; see :class:`GgufFile`.
    """
    global _latest
    try:
        status = os.stat(path)
    except OSError as error:
        raise ModelLoadError(f"[load] {path} must be readable; got {error.strerror}.") from None
    identity = (str(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    latest = _latest
    if latest is not None and latest[0] == identity:
        return latest[1]
    file = GgufFile(path)
    _latest = (identity, file)
    return file


def forget_gguf() -> None:
    """Drop the file opened last: its vocabulary takes tens of megabytes."""
    global _latest
    _latest = None


class _Header:
    """Reads a header with a cursor that never leaves the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self._data = data
        self._size = len(data)
        self._end = min(self._size, MAX_HEADER_BYTES)
        self._at = 0
        self.version = self._check_version()
        num_tensors, num_entries = self._scalar("Q", "tensors"), self._scalar("Q", "entries")
        self._room(num_tensors * MIN_TENSOR_BYTES, f"{num_tensors} tensors")
        self._room(num_entries * MIN_ENTRY_BYTES, f"{num_entries} metadata entries")
        self.metadata: dict[str, Any] = {}
        for number in range(num_entries):
            self._read_entry(number)
        self.alignment = self._read_alignment()
        self.tensors: dict[str, GgufTensor] = {}
        for number in range(num_tensors):
            self._read_tensor(number)
        self._place_tensors()

    def _check_version(self) -> int:
        magic = self._take(4, "the magic bytes")
        if magic != MAGIC:
            raise self._error("must begin with the bytes GGUF", magic)
        version = int(self._scalar("I", "the version"))
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if version not in VERSIONS and swapped in VERSIONS:
            raise ModelLoadError(
                f"[load] {self.path}: must be little-endian; got a big-endian GGUF of version "
                f"{swapped}. Convert it on the machine it was made for, or fetch another."
            )
        if version not in VERSIONS:
            raise ModelLoadError(
                f"[load] {self.path}: must be GGUF version 2 or 3; got {version}. Convert the "
                "model again with a program of today."
            )
        return version

    def _read_entry(self, number: int) -> None:
        key = self._name(f"key {number}")
        if key in self.metadata:
            raise self._error("keys must differ", f"{key} twice")
        self.metadata[key] = self._value(self._scalar("I", f"the type of {key}"), key, MAX_DEPTH)

    def _value(self, kind: int, key: str, depth: int) -> Any:
        if kind in SCALARS:
            return self._scalar(SCALARS[kind], key)
        if kind == BOOL:
            return self._booleans(1, key)[0]
        if kind == STRING:
            return self._string(key)
        if kind != ARRAY:
            raise self._error(f"{key} must have a type from 0 to 12", kind)
        if depth == 0:
            raise self._error(f"{key} must nest at most {MAX_DEPTH} arrays", "more")
        kind, count = self._scalar("I", f"the type of {key}"), self._scalar("Q", f"{key}'s length")
        if kind not in MIN_BYTES:
            raise self._error(f"{key} must have elements of a type from 0 to 12", kind)
        self._room(count * MIN_BYTES[kind], f"{count} elements of {key}")
        if kind in SCALARS:
            numbers = array.array(SCALARS[kind])
            numbers.frombytes(self._take(count * MIN_BYTES[kind], key))
            if sys.byteorder == "big":
                numbers.byteswap()
            return numbers
        if kind == BOOL:
            return self._booleans(count, key)
        if kind == STRING:
            return self._strings(count, key)
        return [self._value(kind, key, depth - 1) for _ in range(count)]

    def _booleans(self, count: int, key: str) -> list[bool]:
        data = self._take(count, key)
        if data.strip(b"\x00\x01"):
            raise self._error(f"{key} must be 0 or 1", max(data))
        return [byte == 1 for byte in data]

    def _read_alignment(self) -> int:
        value = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(value) is not int or not 1 <= value <= MAX_ALIGNMENT or value & (value - 1):
            raise self._error("general.alignment must be a power of 2 up to 2**20", _shown(value))
        return value

    def _read_tensor(self, number: int) -> None:
        """Read one description; ``begin`` and ``end`` count from the data's start until placed."""
        name = self._name(f"the name of tensor {number}")
        if name in self.tensors:
            raise self._error("tensors must have different names", f"{name} twice")
        num_dims = self._scalar("I", f"the dims of {name}")
        if not 1 <= num_dims <= MAX_DIMS:
            raise self._error(f"{name} must have 1 to {MAX_DIMS} dims", num_dims)
        dims = [self._scalar("Q", f"the shape of {name}") for _ in range(num_dims)]
        code = self._scalar("I", f"the type of {name}")
        offset = self._scalar("Q", f"the offset of {name}")
        if code not in LAYOUT_BY_CODE:
            raise ModelLoadError(
                f"[load] {self.path}: {name} must be of a type among {', '.join(LAYOUTS)}; got "
                f"{OTHER_TYPES.get(code, 'unknown')} ({code}). Use a file of another quantization."
            )
        layout = LAYOUT_BY_CODE[code]
        if not all(0 < dim < 2**48 for dim in dims) or dims[0] % layout.block_size:
            rule = f"{name} must have dims > 0, the first a multiple of {layout.block_size}"
            raise self._error(f"{rule} for {layout.name}", dims)
        if offset % self.alignment:
            raise self._error(f"{name} must begin at a multiple of {self.alignment}", offset)
        nbytes = math.prod(dims) // layout.block_size * layout.block_bytes
        self.tensors[name] = GgufTensor(layout, tuple(reversed(dims)), offset, offset + nbytes)

    def _place_tensors(self) -> None:
        """Refuse tensors that leave the file or overlap; count their places from its start."""
        data = self._at + -self._at % self.alignment
        end, previous = 0, ""
        by_place = sorted(self.tensors.items(), key=lambda item: (item[1].begin, item[1].end))
        for name, tensor in by_place:
            if data + tensor.end > self._size:
                rule = f"{name} must lie in the file, whose size is {self._size}"
                raise self._error(rule, f"an end at byte {data + tensor.end}; it may be cut off")
            if tensor.begin < end:
                rule = f"{name} must begin after {previous}, which ends at byte {data + end}"
                raise self._error(rule, f"byte {data + tensor.begin}")
            end, previous = tensor.end, name
            begin = data + tensor.begin
            self.tensors[name] = GgufTensor(tensor.layout, tensor.shape, begin, data + end)

    def _name(self, what: str) -> str:
        length = self._scalar("Q", what)
        if not 1 <= length <= MAX_NAME_BYTES:
            raise self._error(f"{what} must have 1 to {MAX_NAME_BYTES} bytes", length)
        name = self._decode(self._take(length, what), what)
        if not name.isprintable():
            raise self._error(f"{what} must be printable", ascii(name))
        return name

    def _string(self, key: str) -> str:
        length = self._scalar("Q", f"{key}'s length")
        return self._decode(self._take(length, f"a string of {length} bytes in {key}"), key)

    def _strings(self, count: int, key: str) -> list[str]:
        """Read many strings; vocabularies have hundreds of thousands."""
        try:
            found, self._at = native.gguf_strings(self._data, self._at, self._end, count)
        except UnicodeDecodeError as error:
            raise self._error(f"{key} must be UTF-8", error) from None
        if len(found) < count:
            self._string(key)  # the one that does not fit, with the usual message
        strings: list[str] = found
        return strings

    def _decode(self, data: bytes, what: str) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self._error(f"{what} must be UTF-8", error) from None

    def _scalar(self, code: str, what: str) -> Any:
        size = struct.calcsize(code)
        self._room(size, what)
        (value,) = struct.unpack_from(f"<{code}", self._data, self._at)
        self._at += size
        return value

    def _take(self, count: int, what: str) -> bytes:
        self._room(count, what)
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def _room(self, count: int, what: str) -> None:
        """Refuse a file that has fewer than ``count`` bytes left."""
        if count > self._end - self._at:
            limit = "the file" if self._end == self._size else f"{self._end} bytes of header"
            rule = f"{what} must fit into {limit}, {self._end - self._at} bytes from here"
            raise self._error(rule, f"{count} bytes")

    def _error(self, rule: str, got: object) -> ModelLoadError:
        return damaged(self.path, rule, got)


def damaged(path: Path, rule: str, got: object) -> ModelLoadError:
    """Return the error that a file breaks ``rule``."""
    text = str(got)
    text = text if len(text) <= 120 else text[:117] + "..."
    return ModelLoadError(
        f"[load] {path}: {rule}; got {text}. The file is damaged or incomplete: fetch it again."
    )


def _shown(value: object) -> str:
    if isinstance(value, list | array.array):
        return f"{len(value)} elements"
    return "none" if value is None else repr(value)[:120]
