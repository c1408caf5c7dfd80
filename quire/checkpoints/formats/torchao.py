"""Matrices as torchao stores them in safetensors files, a byte for each code.

```
_weight_qdata        (N, K) int8    codes, from -2 ** (bits - 1)
_weight_scale        (N, G)         value = scale * (code - zero_point)
_weight_zero_point   (N, G) int8
```
What else the files say is JSON in their metadata: classes of tensors, which the names, types and
shapes of the parts tell as well. Nothing of it is run.

Source: torchao (Int8Tensor, IntxUnpackedToInt8Tensor, prototype.safetensors).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.checkpoints.formats.stored_matrix import (
    FLOATS,
    StoredMatrix,
    columns_per_group,
    common_zero,
    scale_type,
    whole_shape,
)
from quire.kernels.matrices.quantized_tensor import QuantizedForm, QuantizedTensor

BITS = (2, 3, 4, 5, 6, 8)


@dataclass(frozen=True, slots=True)
class TorchaoFormat:
    """See :class:`~quire.checkpoints.formats.stored_matrix.WeightFormat`.

    Attributes:
        bits: Bits of a code, one of :data:`BITS`; codes are held in that many bits, not in a byte.
    """

    bits: int
    marker: str = "_weight_qdata"
    parts: frozenset[str] = frozenset(("_weight_qdata", "_weight_scale", "_weight_zero_point"))

    def shape(self, matrix: StoredMatrix) -> tuple[int, int]:
        """Return (N, K)."""
        return whole_shape(matrix, "I8", part="_weight_qdata")

    def form(self, matrix: StoredMatrix) -> QuantizedForm:
        """Return how it will be held."""
        kind = scale_type(matrix.part("_weight_scale", *FLOATS))
        return QuantizedForm(self.bits, self._group_size(matrix), kind, zero=1 << self.bits - 1)

    def unpack(self, matrix: StoredMatrix) -> QuantizedTensor:
        """Read the parts."""
        rows, columns = self.shape(matrix)
        size, middle = self._group_size(matrix), 1 << self.bits - 1
        shape = (rows, -(-columns // size))
        codes = matrix.part("_weight_qdata", "I8").read()
        zeros = np.zeros(shape, np.int8)
        if "_weight_zero_point" in matrix.parts:
            zeros = matrix.array("_weight_zero_point", shape, "I8")
        for name, numbers in (("_weight_qdata", codes), ("_weight_zero_point", zeros)):
            if numbers.min() < -middle or numbers.max() >= middle:
                rule = f"{name} must be from {-middle} to {middle - 1}"
                raise matrix.error(rule, f"{numbers.min()}..{numbers.max()}")
        held = (zeros.astype(np.int16) + middle).astype(np.uint8)
        common = common_zero(held)
        return QuantizedTensor(
            name=f"{matrix.name}.weight",
            bits=self.bits,
            group_size=size,
            codes=(codes.astype(np.int16) + middle).astype(np.uint8),
            scales=matrix.numbers("_weight_scale", shape),
            zero=0 if common is None else common,
            zeros=held if common is None else None,
        )

    def _group_size(self, matrix: StoredMatrix) -> int:
        rows, columns = self.shape(matrix)
        stored = matrix.part("_weight_scale", *FLOATS).shape
        if len(stored) != 2 or stored[0] != rows or not stored[1] or columns % stored[1]:
            raise matrix.error(f"_weight_scale must be ({rows}, groups)", stored)
        return columns_per_group(matrix, columns // stored[1], columns)
