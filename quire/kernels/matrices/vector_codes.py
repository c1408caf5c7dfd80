"""Ways to hold codes of several columns together: a number of a table of vectors, and signs.

``value = (2 s + 1) * super scale * step * (code - zero)`` with a scale ``s`` for each group, and
codes that the table has for 8 or 4 columns at once, negative ones as far below ``zero``.

Source: native/include/vectors.h has the bits; they are those of GGUF's types of the same names.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.kernels.matrices.vector_grids import vector_grid


@dataclass(frozen=True, slots=True)
class VectorCodes:
    """A way of holding vectors.

    Attributes:
        number: Number of the form in ``VectorForm`` of native/include/vectors.h.
        grid: Name of the table, see :func:`quire.kernels.matrices.vector_grids.vector_grid`.
        bits: Bits that a code needs once it is looked up.
        group_size: Columns that share a scale.
        step: Factor that scales are multiplied by.
        row_bytes: Bytes of 256 columns of a row.
    """

    number: int
    grid: str
    bits: int
    group_size: int
    step: float
    row_bytes: int

    @property
    def zero(self) -> int:
        """Code of the value 0."""
        return 1 << self.bits - 1

    def table(self) -> np.ndarray:
        """Return the codes of vectors as kernels add signs to them: (indices, 8 or 4) uint8.

        To those of IQ1, which have no signs, 1 is added; kernels subtract 2 where a bit says so.
        """
        codes: np.ndarray = vector_grid(self.grid).astype(np.int16) + self.zero
        return (codes + (self.grid == "IQ1")).astype(np.uint8)


VECTOR_CODES = {
    "IQ1_S": VectorCodes(1, "IQ1", 5, 32, 1 / 8, 50),
    "IQ1_M": VectorCodes(2, "IQ1", 5, 16, 1 / 8, 56),
    "IQ2_XXS": VectorCodes(3, "IQ2_XXS", 8, 32, 1 / 8, 66),
    "IQ2_XS": VectorCodes(4, "IQ2_XS", 8, 16, 1 / 8, 74),
    "IQ2_S": VectorCodes(5, "IQ2_S", 8, 16, 1 / 8, 82),
    "IQ3_XXS": VectorCodes(6, "IQ3_XXS", 8, 32, 1 / 4, 98),
    "IQ3_S": VectorCodes(7, "IQ3_S", 5, 32, 1.0, 110),
}
