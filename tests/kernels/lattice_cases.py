"""Matrices of lattice codes for tests, and what a code stands for, read bit by bit."""

from __future__ import annotations

from itertools import product

import numpy as np

from quire.kernels.matrices.lattice_matrix import LatticeMatrix
from quire.kernels.matrices.rotation import hartley_matrix, odd_part

#: Vectors of norm 12 in halves, as QuIP#'s code lists them.
NORM_12 = (
    "31113333 13113333 11313333 11133333 33313311 33313131 33311331 33313113 33311313 33311133 "
    "33133311 33133131 33131331 33133113 33131313 33131133 31333311 31333131 31331331 31333113 "
    "31331313 13331133 13333311 13333131 13331331 13333113 13331313 11331333 33113331"
)
BALL = [v for v in product((0.5, 1.5, 2.5), repeat=8) if sum(x * x for x in v) <= 10]
VECTORS = BALL + [tuple(int(digit) / 2 for digit in row) for row in NORM_12.split()]


def literal_weights(code: int) -> list[float]:
    """Return the eight weights of a code as the paper has them: halves, signs, a quarter."""
    signs, vector = code & 255, list(VECTORS[code >> 8])
    odd = bin(signs).count("1") % 2
    signs ^= odd
    if sum(vector) % 2 == 1:
        vector[7] = -vector[7]
    bit_of = (0, 4, 1, 5, 2, 6, 3, 7)
    values = [-x if signs >> bit_of[i] & 1 else x for i, x in enumerate(vector)]
    return [x - 0.25 if odd else x + 0.25 for x in values]


def random_lattice(rows: int, columns: int, stages: int = 1, seed: int = 0) -> LatticeMatrix:
    """Make a matrix of any codes, with a scale for each row."""
    random = np.random.default_rng(seed)

    def signs(count: int) -> np.ndarray:
        return random.choice(np.array([-1, 1], np.float32), count)

    return LatticeMatrix(
        name="w",
        codes=random.integers(0, 1 << 16, (stages, rows, columns // 8), np.uint16),
        stage_scales=np.array([1, 1 / 3.45][:stages], np.float32),
        row_scales=random.uniform(0.01, 0.02, rows).astype(np.float32),
        input_factors=signs(columns),
        output_factors=signs(rows) * np.float32(1.5),
        input_matrix=hartley_matrix(odd_part(columns)),
        output_matrix=hartley_matrix(odd_part(rows)),
    )
