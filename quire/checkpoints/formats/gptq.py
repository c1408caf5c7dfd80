"""Matrices as GPTQ's programs store them.

```
qweight  (K * bits / 32, N) int32   codes packed along K
qzeros   (G, N * bits / 32) int32   zeros packed along N; of version 1 one less than they are
scales   (G, N)                     value = scale * (code - zero)
g_idx    (K,) int32                 the group of each input, where groups are not runs of inputs
```
Source: AutoGPTQ and GPTQModel (QuantLinear, ``checkpoint_format`` gptq and gptq_v2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.checkpoints.formats.packed_words import (
    WORD_BITS,
    pack_words,
    unpack_words,
    words_of,
)
from quire.checkpoints.formats.stored_matrix import (
    FLOATS,
    StoredMatrix,
    columns_per_group,
    common_zero,
    group_zeros,
    in_order_of_inputs,
    input_order,
    scale_type,
)
from quire.kernels.matrices.quantized_tensor import QuantizedForm, QuantizedTensor

BITS = (2, 3, 4, 8)


@dataclass(frozen=True, slots=True)
class GPTQFormat:
    """See :class:`~quire.checkpoints.formats.stored_matrix.WeightFormat`.

    Attributes:
        bits: One of :data:`BITS`.
        group_size: Inputs that share a scale; below 1 for all.
        zeros_less_one: Zeros are stored as one less (version 1).
        symmetric: All zeros are the middle code, as far as the configuration says.
    """

    bits: int
    group_size: int
    zeros_less_one: bool = True
    symmetric: bool = True
    marker: str = "qweight"
    parts: frozenset[str] = frozenset(("qweight", "qzeros", "scales", "g_idx"))

    def shape(self, matrix: StoredMatrix) -> tuple[int, int]:
        """Return (N, K)."""
        shape = matrix.part("qweight", "I32").shape
        if len(shape) != 2 or 0 in shape or shape[0] * WORD_BITS % self.bits:
            rule = f"qweight must be (words, N) of {self.bits}-bit codes, not empty"
            raise matrix.error(rule, shape)
        return shape[1], shape[0] * WORD_BITS // self.bits

    def form(self, matrix: StoredMatrix) -> QuantizedForm:
        """Return how it will be held."""
        columns = self.shape(matrix)[1]
        return QuantizedForm(
            bits=self.bits,
            group_size=columns_per_group(matrix, self.group_size, columns),
            scale_type=scale_type(matrix.part("scales", *FLOATS)),
            zero=1 << self.bits - 1 if self.symmetric else 0,
            zero_type=None if self.symmetric else "uint8",
        )

    def unpack(self, matrix: StoredMatrix) -> QuantizedTensor:
        """Read the parts."""
        rows, columns = self.shape(matrix)
        size = columns_per_group(matrix, self.group_size, columns)
        groups = -(-columns // size)
        words = matrix.array("qweight", (words_of(columns, self.bits), rows), "I32")
        scales = np.ascontiguousarray(matrix.numbers("scales", (groups, rows)).T)
        zero_words = matrix.array("qzeros", (groups, words_of(rows, self.bits)), "I32")
        zeros = unpack_words(zero_words, self.bits, rows).T + np.uint8(self.zeros_less_one)
        codes = unpack_words(np.ascontiguousarray(words.T), self.bits, columns)
        order = input_order(matrix, "g_idx", columns, size)
        common = common_zero(zeros)
        return QuantizedTensor(
            name=f"{matrix.name}.weight",
            bits=self.bits,
            group_size=size,
            codes=codes if order is None else np.ascontiguousarray(codes[:, order]),
            scales=scales,
            zero=0 if common is None else common,
            zeros=np.ascontiguousarray(zeros) if common is None else None,
            input_order=order,
        )


def store_gptq(matrix: QuantizedTensor, zeros_less_one: bool = True) -> dict[str, np.ndarray]:
    """Return the parts of a matrix; :class:`GPTQFormat` reads its values back.

    Args:
        matrix: A matrix of integers, N and K such that codes of a row and of a column fill words.
        zeros_less_one: Whether to store zeros as one less (version 1); none may be 0 then.
    """
    codes, groups = in_order_of_inputs(matrix)
    zeros = group_zeros(matrix)
    assert not zeros_less_one or zeros.min() > 0, matrix.name
    zeros = zeros - np.uint8(zeros_less_one)
    return {
        "qweight": np.ascontiguousarray(pack_words(codes, matrix.bits).T),
        "qzeros": pack_words(np.ascontiguousarray(zeros.T), matrix.bits),
        "scales": np.ascontiguousarray(matrix.scales.T),
        "g_idx": groups,
    }
