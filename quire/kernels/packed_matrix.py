"""Weights that are packed already: what a backend made earlier, in a mapped file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from quire.kernels.quantized_tensor import QuantizedForm


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """One part of a linear in a backend's own layout.

    Attributes:
        names: Of the matrices in it, the checkpoint's.
        shape: (outputs, inputs) of the part.
        dtype: Element type of floats; empty where they are quantized.
        form: How it is quantized, or None.
        data: Buffer of its bytes, aligned to 64, only read.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    form: QuantizedForm | None
    data: Any

    @property
    def name(self) -> str:
        """Of the first matrix, for messages."""
        return self.names[0]


class PackedPart(Protocol):
    """One part of a packed linear, as a backend shows it."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the matrices in it."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        ...

    @property
    def dtype(self) -> str:
        """Element type of floats; empty where they are quantized."""
        ...

    @property
    def form(self) -> QuantizedForm | None:
        """How it is quantized, or None."""
        ...

    @property
    def nbytes(self) -> int:
        """Size of the packed bytes."""
        ...

    def copy_to(self, out: Any) -> None:
        """Copy the packed bytes to a writable buffer of ``nbytes``."""
        ...


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """What a backend says of the bytes it packs.

    Attributes:
        version: Changes when they do.
        checksum: Of a buffer, 64 bits.
    """

    version: int
    checksum: Callable[[Any], int]
