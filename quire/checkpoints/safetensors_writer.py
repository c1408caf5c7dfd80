"""Writes a safetensors file; which tensors it has is the caller's business."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from quire.checkpoints.safetensors_file import DTYPE_BITS

#: Tensors begin at multiples of this.
ALIGNMENT = 8
#: Types of arrays as the format names them; bfloat16 and floats of 8 bits are named by the caller.
NAMES = {
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "float64": "F64",
    "float16": "F16",
    "float32": "F32",
}


@dataclass(frozen=True, slots=True)
class TensorData:
    """A tensor to be written.

    Attributes:
        dtype: The format's name of the element type.
        shape: Row-major shape.
        read: Function that returns the elements, C-contiguous; called when they are written.
        release: Function called after they are written.
    """

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]
    release: Callable[[], None] = lambda: None

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return prod(self.shape) * DTYPE_BITS[self.dtype] // 8


def tensor_data(array: np.ndarray, dtype: str = "") -> TensorData:
    """Return an array as a tensor: of numpy's own types, or of bytes that are named."""
    whole = np.ascontiguousarray(array)
    return TensorData(dtype or NAMES[str(array.dtype)], array.shape, lambda: whole)


def write_safetensors(path: Path, tensors: Mapping[str, TensorData]) -> Iterator[int]:
    """Write a file; it appears under its name when it is complete.

    Args:
        path: Path of the file; an existing one is replaced.
        tensors: Tensors by name, in the order of the file.

    Yields:
        Bytes written so far, after each tensor.

    Raises:
        OSError: The folder does not exist, or room or permission is missing; nothing is left.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(_header(tensors))
            done = 0
            for name, tensor in tensors.items():
                elements = tensor.read()
                assert elements.nbytes == tensor.nbytes, (name, elements.nbytes, tensor.nbytes)
                elements.tofile(file)
                tensor.release()
                done += tensor.nbytes
                yield done
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _header(tensors: Mapping[str, TensorData]) -> bytes:
    # Other programs ask which library's tensors these are.
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, tensor in tensors.items():
        end = begin + tensor.nbytes
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text
