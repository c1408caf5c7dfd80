"""A matrix of lattice codes in host memory, rotated on both sides.

``W = diag(output_factors) R_out diag(row_scales) Q R_in.T diag(input_factors)``: R_in and R_out are
the rotations (:mod:`quire.kernels.matrices.rotation`) of ``input_matrix`` and ``output_matrix``,
and Q is what codes stand for (:mod:`quire.kernels.matrices.lattice_codes`), stage after stage: the
codes of each are times its own scale and added up. Kernels rotate activations, not weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.core.errors import UnsupportedInputError
from quire.kernels.matrices.lattice_codes import CODE_BITS, SIZE, STEP, ZERO, decode
from quire.kernels.matrices.quantized_tensor import QuantizedForm, RotationForm, padded
from quire.kernels.matrices.rotation import odd_part, rotate

#: Rows that are decoded at a time, which bounds the memory on top of a matrix and its values.
DECODED_ROWS = 256
#: The largest matrix of a rotation that is not a power of two: its cost grows with its size.
MAX_BASE = 255
#: Most codes that are added up for a weight.
MAX_STAGES = 2


@dataclass(frozen=True, slots=True)
class LatticeMatrix:
    """A matrix of N rows (outputs) and K columns (inputs).

    Attributes:
        name: The checkpoint's name, for messages.
        codes: (stages, N, K / 8) uint16.
        stage_scales: (stages,) float32.
        row_scales: (N,) float32.
        input_factors: (K,) float32.
        output_factors: (N,) float32.
        input_matrix: (b, b) float32, b the odd part of K.
        output_matrix: (b, b) float32, b the odd part of N.

    Raises:
        UnsupportedInputError: The parts do not fit together.
    """

    name: str
    codes: np.ndarray
    stage_scales: np.ndarray
    row_scales: np.ndarray
    input_factors: np.ndarray
    output_factors: np.ndarray
    input_matrix: np.ndarray
    output_matrix: np.ndarray

    def __post_init__(self) -> None:
        codes = self.codes
        if codes.ndim != 3 or 0 in codes.shape or codes.dtype != np.uint16:
            rule = "codes must be (stages, N, K / 8) uint16, not empty"
            raise self._refuse(rule, f"{codes.shape} {codes.dtype}")
        if len(codes) > MAX_STAGES:
            raise self._refuse(f"there must be at most {MAX_STAGES} stages", len(codes))
        rows, columns = self.shape
        bases = odd_part(columns), odd_part(rows)
        if max(bases) > MAX_BASE:
            rule = f"without factors of two, sizes must be at most {MAX_BASE}"
            raise self._refuse(rule, f"{self.shape}, that is {bases}")
        shapes = {
            "stage_scales": (len(codes),),
            "row_scales": (rows,),
            "input_factors": (columns,),
            "output_factors": (rows,),
            "input_matrix": (bases[0],) * 2,
            "output_matrix": (bases[1],) * 2,
        }
        for name, shape in shapes.items():
            part = getattr(self, name)
            if part.shape != shape or part.dtype != np.float32:
                rule = f"{name} must be {shape} float32"
                raise self._refuse(rule, f"{part.shape} {part.dtype}")

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, K)."""
        return self.codes.shape[1], self.codes.shape[2] * SIZE

    @property
    def form(self) -> QuantizedForm:
        """The form that the matrix is held in."""
        return lattice_form(len(self.codes), *self.shape)

    def rotated(self) -> np.ndarray:
        """Return Q times its scales, (N, K) float32."""
        made = np.empty(self.shape, np.float32)
        for begin in range(0, len(made), DECODED_ROWS):
            part = slice(begin, begin + DECODED_ROWS)
            made[part] = 0
            for codes, scale in zip(self.codes, self.stage_scales, strict=True):
                made[part] += decode(codes[part]) * (np.float32(STEP) * scale)
            made[part] *= self.row_scales[part, None]
        return made

    def float32(self) -> np.ndarray:
        """Return the values as a new (N, K) float32 array."""
        inputs = rotate(self.rotated(), self.input_matrix) * self.input_factors
        outputs = rotate(np.ascontiguousarray(inputs.T), self.output_matrix)
        return np.ascontiguousarray((outputs * self.output_factors).T)

    def _refuse(self, rule: str, got: object) -> UnsupportedInputError:
        return UnsupportedInputError(f"[quantized {self.name}] {rule}; got {got}.")


def lattice_form(stages: int, rows: int, columns: int) -> QuantizedForm:
    """Return how a matrix (rows, columns) is held."""
    return QuantizedForm(
        bits=CODE_BITS,
        group_size=padded(columns),
        scale_type="float32",
        zero=ZERO,
        vectors="E8P",
        rotation=RotationForm(stages, odd_part(columns), odd_part(rows)),
    )
