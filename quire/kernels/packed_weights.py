"""Weights in a backend's own layout, which it multiplies and which a file may keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quire.kernels.matrices.quantized_tensor import QuantizedForm, padded


def float_bytes(rows: int, columns: int, dtype_bytes: int) -> int:
    """Return the memory that a matrix of floats takes when it is packed."""
    return padded(rows) * padded(columns) * dtype_bytes


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """Matrices of one form, stacked along the outputs: a linear, or some of its outputs.

    Attributes:
        names: Names of the matrices, the checkpoint's.
        shape: (outputs, inputs) of the stack.
        dtype: Element type of floats; empty where they are quantized.
        form: The form of quantized matrices, or None.
        data: Buffer of its bytes, aligned to 64, only read: the backend's memory or a mapped file.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    form: QuantizedForm | None
    data: Any

    @property
    def name(self) -> str:
        """Name of the first matrix, for messages."""
        return self.names[0]
