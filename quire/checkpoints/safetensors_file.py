"""One safetensors file: its header checked to the byte, its tensors as views of the mapped file.

The format: 8 bytes little-endian header length, a JSON header ``{name: {dtype, shape,
data_offsets}}``, then the tensors back to back. We parse it ourselves because numpy has no
bfloat16, and because a damaged file must be refused with the name of what is wrong in it.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.checkpoints.mapped_pages import release_pages
from quire.core.errors import ModelLoadError
from quire.kernels.matrices.host_tensor import NUMPY_DTYPES, HostTensor
from quire.system.regular_files import open_regular

DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
#: Types that are read as whole numbers.
INTEGERS: dict[str, npt.DTypeLike] = {"I64": np.int64, "I32": np.int32, "BOOL": np.uint8}

#: Types that are read as they are.
ARRAYS: dict[str, npt.DTypeLike] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    **dict.fromkeys(("U8", "F8_E4M3", "F8_E8M0"), np.uint8),
}

#: Bits of an element of every type the format defines; only DTYPES can be loaded.
DTYPE_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}

#: The limit of the format's own library.
MAX_HEADER_BYTES = 100_000_000
MAX_DIMS = 16


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor's type, shape and place in the file.

    Attributes:
        dtype: The format's name of the element type, a key of :data:`DTYPE_BITS`.
        shape: Row-major.
        begin, end: Bytes ``[begin, end)`` of the file.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.end - self.begin


class SafetensorsFile:
    """A mapped file; nothing is read before a tensor's elements are.

    Attributes:
        path: The file.
        entries: Name to place.

    Raises:
        ModelLoadError: The file cannot be read, or any part of its header is wrong.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
                self.entries = _read_entries(path, file.read(8), file, size)
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelLoadError(f"[load] {path} must be readable; got {error.strerror}.") from None

    def tensor(self, name: str) -> HostTensor:
        """Return a view of tensor ``name`` (a copy where the file leaves it unaligned).

        Raises:
            ModelLoadError: The element type is not float32, float16 or bfloat16.
        """
        entry = self.entries[name]
        if entry.dtype not in DTYPES:
            raise ModelLoadError(
                f"[load] {self.path}: {name} must be one of {', '.join(DTYPES)}; got {entry.dtype}."
            )
        dtype = DTYPES[entry.dtype]
        count = math.prod(entry.shape)
        array = np.frombuffer(self._map, NUMPY_DTYPES[dtype], count, entry.begin)
        array = np.require(array, requirements="A").reshape(entry.shape)
        return HostTensor(name, dtype, array)

    def array(self, name: str) -> np.ndarray:
        """Return the elements of tensor ``name``: floats of 8 bits as uint8, bfloat16 as float32.

        Raises:
            ModelLoadError: numpy has no such type.
        """
        entry = self.entries[name]
        if entry.dtype == "BF16":
            return self.tensor(name).float32()
        if entry.dtype not in ARRAYS:
            raise ModelLoadError(
                f"[load] {self.path}: {name} must be BF16 or one of {', '.join(ARRAYS)}; got "
                f"{entry.dtype}."
            )
        array = np.frombuffer(self._map, ARRAYS[entry.dtype], math.prod(entry.shape), entry.begin)
        return np.require(array, requirements="A").reshape(entry.shape)

    def integers(self, name: str) -> np.ndarray:
        """Return a copy of a tensor of integers or truth values, as int64.

        Raises:
            ModelLoadError: The tensor is of another type.
        """
        entry = self.entries[name]
        if entry.dtype not in INTEGERS:
            raise ModelLoadError(
                f"[load] {self.path}: {name} must be one of {', '.join(INTEGERS)}; "
                f"got {entry.dtype}."
            )
        count = math.prod(entry.shape)
        array = np.frombuffer(self._map, INTEGERS[entry.dtype], count, entry.begin)
        return array.astype(np.int64).reshape(entry.shape)

    def release(self, name: str) -> None:
        """Give the pages of tensor ``name`` back; reading it again maps them again."""
        entry = self.entries[name]
        release_pages(self._map, entry.begin, entry.end)


def _read_entries(path: Path, length_bytes: bytes, file: Any, size: int) -> dict[str, TensorEntry]:
    if len(length_bytes) < 8:
        raise _damaged(path, "must begin with 8 bytes of header length", f"{size} bytes")
    length = int.from_bytes(length_bytes, "little")
    if length > MAX_HEADER_BYTES:
        raise _damaged(path, f"must have a header of at most {MAX_HEADER_BYTES} bytes", length)
    if 8 + length > size:
        raise _damaged(path, f"must hold its header of {length} bytes", f"{size} bytes in all")
    try:
        header = json.loads(file.read(length), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "must have a header in JSON", error) from None
    if not isinstance(header, dict):
        raise _damaged(path, "must have an object as header", type(header).__name__)
    header.pop("__metadata__", None)
    entries = {name: _entry(path, name, value, 8 + length) for name, value in header.items()}
    _check_places(path, entries, 8 + length, size)
    return entries


def _entry(path: Path, name: str, value: Any, data: int) -> TensorEntry:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise _damaged(path, f"{name} must have dtype, shape and data_offsets", value)
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _damaged(path, f"{name} must have a known dtype", dtype)
    if not _sizes(shape):
        raise _damaged(path, f"{name} must have a shape of at most 16 sizes >= 0", shape)
    # Of an empty tensor, too: numpy multiplies the sizes that are not 0.
    if math.prod(size or 1 for size in shape) >= 2**48:
        raise _damaged(path, f"{name} must have sizes whose product is below 2**48", shape)
    if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _damaged(path, f"{name} must have data_offsets [begin, end]", offsets)
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits != 8 * (offsets[1] - offsets[0]):
        rule = f"{name} must take {bits / 8:g} bytes as {dtype} {tuple(shape)}"
        raise _damaged(path, rule, offsets[1] - offsets[0])
    return TensorEntry(dtype, tuple(shape), data + offsets[0], data + offsets[1])


def _check_places(path: Path, entries: dict[str, TensorEntry], data: int, size: int) -> None:
    """Refuse tensors that overlap, leave a gap, or do not end where the file does."""
    end, previous = data, "the header"
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.end > size:
            rule = f"{name} must lie in the file, whose size is {size}"
            raise _damaged(path, rule, f"an end at byte {entry.end}; the file is cut off")
        if entry.begin != end:
            rule = f"{name} must begin where {previous} ends, at byte {end}"
            raise _damaged(path, rule, f"byte {entry.begin}")
        end, previous = entry.end, name
    if end != size:
        raise _damaged(path, f"must end with {previous} at byte {end}", f"{size} bytes")


def _sizes(value: Any) -> bool:
    if not isinstance(value, list) or len(value) > MAX_DIMS:
        return False
    return all(type(item) is int and 0 <= item < 2**48 for item in value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"twice the name {next(n for n in names if names.count(n) > 1)}")
    return result


def _damaged(path: Path, rule: str, got: object) -> ModelLoadError:
    text = str(got)
    text = text if len(text) <= 120 else text[:117] + "..."
    return ModelLoadError(
        f"[load] {path}: {rule}; got {text}. The file is damaged or incomplete: fetch it again."
    )
