"""Writes a GGUF file of version 3; which metadata and tensors it has is the caller's business."""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from quire.checkpoints.gguf.gguf_file import ARRAY, BOOL, DEFAULT_ALIGNMENT, MAGIC, SCALARS, STRING
from quire.checkpoints.gguf.gguf_layouts import BlockLayout

VERSION = 3
UINT32, FLOAT32 = 4, 6
_ARRAY_CODES = {code: kind for kind, code in SCALARS.items()}


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """A tensor to be written.

    Attributes:
        name: Name in the file.
        layout: Layout of its type.
        shape: Row-major shape.
        chunks: Function that yields its bytes, in order.
    """

    name: str
    layout: BlockLayout
    shape: tuple[int, ...]
    chunks: Callable[[], Iterator[bytes]]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return prod(self.shape) // self.layout.block_size * self.layout.block_bytes


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Sequence[TensorPlan],
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write a file; it appears under its name when it is complete.

    Args:
        path: Path of the file; an existing one is replaced.
        metadata: str, bool, int (as uint32), float (as float32), lists of str or of bool,
            ``array.array``.
        tensors: Tensors in the order of the file.
        on_progress: Function called with bytes done and bytes in all.

    Raises:
        OSError: The folder does not exist, or room or permission is missing; nothing is left.
    """
    total = sum(tensor.nbytes for tensor in tensors)
    # A name of this process: no user's file, and no other writer's, has it.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    done = 0
    try:
        with part.open("wb") as file:
            _write_header(file, metadata, tensors)
            for tensor in tensors:
                _pad(file)
                begin = file.tell()
                for chunk in tensor.chunks():
                    done += file.write(chunk)
                    if on_progress is not None:
                        on_progress(done, total)
                written = file.tell() - begin
                assert written == tensor.nbytes, (tensor.name, written, tensor.nbytes)
            # The last one, too: ggml reads all data at once, with its padding.
            _pad(file)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _write_header(
    file: BinaryIO, metadata: Mapping[str, Any], tensors: Sequence[TensorPlan]
) -> None:
    file.write(MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(metadata)))
    for key, value in metadata.items():
        file.write(_text(key) + _value(value))
    offset = 0
    for tensor in tensors:
        dims = tuple(reversed(tensor.shape))
        file.write(_text(tensor.name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims))
        file.write(struct.pack("<IQ", tensor.layout.code, offset))
        offset += tensor.nbytes + -tensor.nbytes % DEFAULT_ALIGNMENT
    _pad(file)


def _value(value: Any) -> bytes:
    """Return a value with its type before it."""
    match value:
        case bool():
            return struct.pack("<IB", BOOL, value)
        case int():
            return struct.pack("<II", UINT32, value)
        case float():
            return struct.pack("<If", FLOAT32, value)
        case str():
            return struct.pack("<I", STRING) + _text(value)
        case array():
            kind = _ARRAY_CODES[value.typecode]
            numbers = struct.pack(f"<{len(value)}{value.typecode}", *value)
            return struct.pack("<IIQ", ARRAY, kind, len(value)) + numbers
        case list() if value and all(type(flag) is bool for flag in value):
            return struct.pack("<IIQ", ARRAY, BOOL, len(value)) + bytes(value)
        case list():
            texts = b"".join(_text(text) for text in value)
            return struct.pack("<IIQ", ARRAY, STRING, len(value)) + texts
    raise AssertionError(f"{type(value).__name__} has no GGUF type")


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _pad(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % DEFAULT_ALIGNMENT))
