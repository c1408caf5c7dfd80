"""A quantized matrix in a file's own blocks: what a kernel packs without taking it apart first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from quire.kernels.matrices.quantized_tensor import QuantizedForm

#: Elements made of floats at a time, which bounds the memory on top of a matrix and its values.
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class BlockMatrix:
    """A matrix of N rows (outputs) and K columns (inputs) as a GGUF file stores it.

    Attributes:
        name: The checkpoint's name, for messages.
        type_name: The type's name as llama.cpp spells it, such as ``Q4_K``.
        type_code: The type's number in the files.
        shape: (N, K).
        rows: (N, bytes of a row) uint8, C-contiguous, usually a view of a mapped file.
        form: The form that kernels hold it in.
        dequantize: Function of (type name, rows) to (N, K) float32: the definition of the values.
    """

    name: str
    type_name: str
    type_code: int
    shape: tuple[int, ...]
    rows: np.ndarray
    form: QuantizedForm
    dequantize: Callable[[str, np.ndarray], np.ndarray]

    def float32(self) -> np.ndarray:
        """Return the values as a new (N, K) float32 array."""
        values = np.empty(self.shape, np.float32)
        step = max(1, CHUNK // self.shape[1])
        for begin in range(0, len(self.rows), step):
            part = slice(begin, begin + step)
            values[part] = self.dequantize(self.type_name, self.rows[part])
        return values
