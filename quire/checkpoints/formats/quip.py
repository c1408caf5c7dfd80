"""QuIP#'s lattice codes as QuIP-for-all stores them: matrix by matrix, in the order of weights.

```
Qidxs      (N, K / 8) int16     codes of E8P (kernels/matrices/lattice_codes.py): 2 bits of a
weight; or
                      int32     two of them, 4 bits: the first stage's are the high half
SU         (K,)                 inputs are times it before their rotation
SV         (N,)                 outputs after theirs
Wscale     () or (N,)           of what codes stand for, before outputs are rotated
had_left   (b, b)               of the rotation of inputs, b the odd part of K; none where b is 1
had_right  (b, b)               of outputs, of N
weight     ()                   nothing
```
Values are computed in float32; QuIP-for-all computes in float16. quip-sharp's own files (Qidxs of
int64, in the order of a GPU's kernel, of matrices that were joined before) are refused by name.

Source: QuIP-for-all (qlinear.QuantLinear, quant.matmul_hadU_cuda).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.checkpoints.formats.stored_matrix import FLOATS, StoredMatrix
from quire.kernels.matrices.lattice_codes import SIZE
from quire.kernels.matrices.lattice_matrix import MAX_BASE, LatticeMatrix, lattice_form
from quire.kernels.matrices.quantized_tensor import QuantizedForm
from quire.kernels.matrices.rotation import odd_part

#: Names of the code books, and types of their codes, by the bits of a weight.
CODE_BOOKS = {2: "E8P12", 4: "E8P12RVQ4B"}
DTYPES = {2: "I16", 4: "I32"}
#: What the second stage is times, where a configuration does not say.
RESIDUAL_SCALE = 1 / 3.45


@dataclass(frozen=True, slots=True)
class QuipFormat:
    """See :class:`~quire.checkpoints.formats.stored_matrix.WeightFormat`.

    Attributes:
        bits: Bits of a weight, 2 or 4.
        residual_scale: Factor of the second stage of 4 bits.
        has_factors: Whether all matrices have SU and SV: not where others took them over.
    """

    bits: int = 2
    residual_scale: float = RESIDUAL_SCALE
    has_factors: bool = True
    marker: str = "Qidxs"
    parts: frozenset[str] = frozenset(
        ("Qidxs", "SU", "SV", "Wscale", "had_left", "had_right", "weight")
    )

    def shape(self, matrix: StoredMatrix) -> tuple[int, int]:
        """Return (N, K)."""
        stored = matrix.part("Qidxs", DTYPES[self.bits]).shape
        if len(stored) != 2 or 0 in stored or stored[1] * SIZE >= 2**31:
            raise matrix.error(f"Qidxs must be (N, K / {SIZE}), not empty", stored)
        shape = stored[0], stored[1] * SIZE
        bases = odd_part(shape[1]), odd_part(shape[0])
        if max(bases) > MAX_BASE:
            rule = f"without factors of two, sizes must be at most {MAX_BASE}"
            raise matrix.error(rule, f"{shape}, that is {bases}")
        return shape

    def form(self, matrix: StoredMatrix) -> QuantizedForm:
        """Return how it will be held."""
        return lattice_form(self.bits // 2, *self.shape(matrix))

    def unpack(self, matrix: StoredMatrix) -> LatticeMatrix:
        """Read the parts."""
        rows, columns = self.shape(matrix)
        whole = matrix.part("Qidxs", DTYPES[self.bits]).read()
        scale = matrix.part("Wscale", *FLOATS)
        of_rows = scale.shape == (rows,)
        sizes = _numbers(matrix, "Wscale", (rows,) if of_rows else ())
        stages = [whole.view(np.uint16)]
        if self.bits == 4:
            words = whole.view(np.uint32)
            stages = [(words >> 16).astype(np.uint16), words.astype(np.uint16)]
        return LatticeMatrix(
            name=f"{matrix.name}.weight",
            codes=np.stack(stages),
            stage_scales=np.array([1, self.residual_scale][: len(stages)], np.float32),
            row_scales=sizes if of_rows else np.full(rows, sizes, np.float32),
            input_factors=self._factors(matrix, "SU", columns),
            output_factors=self._factors(matrix, "SV", rows),
            input_matrix=_base(matrix, "had_left", odd_part(columns)),
            output_matrix=_base(matrix, "had_right", odd_part(rows)),
        )

    def _factors(self, matrix: StoredMatrix, name: str, count: int) -> np.ndarray:
        if not self.has_factors and name not in matrix.parts:
            return np.ones(count, np.float32)
        return _numbers(matrix, name, (count,))


def _base(matrix: StoredMatrix, name: str, base: int) -> np.ndarray:
    if base == 1 and name not in matrix.parts:
        return np.ones((1, 1), np.float32)
    return _numbers(matrix, name, (base, base))


def _numbers(matrix: StoredMatrix, name: str, shape: tuple[int, ...]) -> np.ndarray:
    return matrix.numbers(name, shape).astype(np.float32)


def store_quip(matrix: LatticeMatrix) -> dict[str, np.ndarray]:
    """Return the parts of a matrix whose rows have one scale."""
    stages = matrix.codes
    size = matrix.row_scales[0]
    assert (matrix.row_scales == size).all(), matrix.name
    codes = stages[0].view(np.int16)
    if len(stages) == 2:
        codes = (stages[0].astype(np.uint32) << 16 | stages[1]).view(np.int32)
    parts = {
        "Qidxs": codes,
        "SU": matrix.input_factors.astype(np.float16),
        "SV": matrix.output_factors.astype(np.float16),
        "Wscale": np.array(size, np.float32),
    }
    for name, base in (("had_left", matrix.input_matrix), ("had_right", matrix.output_matrix)):
        if len(base) > 1:
            parts[name] = base
    return parts
