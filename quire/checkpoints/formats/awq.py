"""Matrices as AWQ's programs store them (version GEMM).

```
qweight  (K, N / 8) int32    4-bit codes packed along N, eight outputs in the order of ORDER
qzeros   (G, N / 8) int32    the same
scales   (G, N)              value = scale * (code - zero)
```
Source: AutoAWQ (WQLinear_GEMM).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.checkpoints.formats.packed_words import pack_words, unpack_words
from quire.checkpoints.formats.stored_matrix import (
    FLOATS,
    StoredMatrix,
    columns_per_group,
    common_zero,
    group_zeros,
    scale_type,
)
from quire.kernels.matrices.quantized_tensor import QuantizedForm, QuantizedTensor

BITS = 4
#: Which of a word's eight codes each of its outputs is.
ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7])


@dataclass(frozen=True, slots=True)
class AWQFormat:
    """See :class:`~quire.checkpoints.formats.stored_matrix.WeightFormat`.

    Attributes:
        group_size: Inputs that share a scale; below 1 for all.
        symmetric: Whether matrices have no zeros, as far as the configuration says.
    """

    group_size: int
    symmetric: bool = False
    marker: str = "qweight"
    parts: frozenset[str] = frozenset(("qweight", "qzeros", "scales"))

    def shape(self, matrix: StoredMatrix) -> tuple[int, int]:
        """Return (N, K)."""
        shape = matrix.part("qweight", "I32").shape
        if len(shape) != 2 or 0 in shape:
            raise matrix.error("qweight must be (K, N / 8), not empty", shape)
        return shape[1] * len(ORDER), shape[0]

    def form(self, matrix: StoredMatrix) -> QuantizedForm:
        """Return how it will be held."""
        columns = self.shape(matrix)[1]
        return QuantizedForm(
            bits=BITS,
            group_size=columns_per_group(matrix, self.group_size, columns),
            scale_type=scale_type(matrix.part("scales", *FLOATS)),
            zero=8 if self.symmetric else 0,
            zero_type=None if self.symmetric else "uint8",
        )

    def unpack(self, matrix: StoredMatrix) -> QuantizedTensor:
        """Read the parts."""
        rows, columns = self.shape(matrix)
        size = columns_per_group(matrix, self.group_size, columns)
        groups = -(-columns // size)
        words = matrix.array("qweight", (columns, rows // len(ORDER)), "I32")
        scales = np.ascontiguousarray(matrix.numbers("scales", (groups, rows)).T)
        zeros = _unpack(matrix.array("qzeros", (groups, rows // len(ORDER)), "I32"))
        common = common_zero(zeros)
        return QuantizedTensor(
            name=f"{matrix.name}.weight",
            bits=BITS,
            group_size=size,
            codes=_unpack(words),
            scales=scales,
            zero=0 if common is None else common,
            zeros=zeros if common is None else None,
        )


def _unpack(words: np.ndarray) -> np.ndarray:
    """Return (N, R) uint8 of (R, N / 8) words."""
    codes = unpack_words(words, BITS, words.shape[1] * len(ORDER))
    ordered = codes.reshape(len(words), -1, len(ORDER))[:, :, ORDER]
    return np.ascontiguousarray(ordered.reshape(len(words), -1).T)


def store_awq(matrix: QuantizedTensor) -> dict[str, np.ndarray]:
    """Return the parts of a matrix, N a multiple of 8; :class:`AWQFormat` reads them back."""
    return {
        "qweight": _pack(matrix.codes),
        "qzeros": _pack(group_zeros(matrix)),
        "scales": np.ascontiguousarray(matrix.scales.T),
    }


def _pack(codes: np.ndarray) -> np.ndarray:
    """Return (R, N / 8) words of (N, R) uint8."""
    ordered = codes.T.reshape(codes.shape[1], -1, len(ORDER))[:, :, np.argsort(ORDER)]
    return pack_words(ordered.reshape(codes.shape[1], -1), BITS)
