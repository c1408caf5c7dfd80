"""E8P codes and rotations against literal readings of their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.errors import UnsupportedInputError
from quire.kernels.matrices.lattice_codes import decode, kernel_codes, kernel_table
from quire.kernels.matrices.lattice_matrix import LatticeMatrix
from quire.kernels.matrices.rotation import hadamard, hartley_matrix, odd_part, rotate
from tests.kernels.lattice_cases import literal_weights, random_lattice

SIZES = [8, 64, 256, 576, 704, 172 * 4, 24]


def test_every_code_is_what_it_says_literally() -> None:
    codes = np.arange(1 << 16, dtype=np.uint16)
    got = decode(codes.reshape(-1, 1))
    want = np.array([literal_weights(int(code)) for code in codes])
    np.testing.assert_array_equal(got / 4, want)


def test_codes_are_different_points_of_the_lattice_moved_by_a_quarter() -> None:
    weights = decode(np.arange(1 << 16, dtype=np.uint16).reshape(-1, 1)).astype(int)
    assert len(np.unique(weights, axis=0)) == 1 << 16
    added = (weights - 1) % 4 == 2  # an odd number of halves once 1/4 is taken off
    assert (added.all(axis=1) | (~added).all(axis=1)).all()
    whole = np.where(added, weights - 1, weights + 1)
    assert (whole.sum(axis=1) % 8 == 0).all()  # even sums: D8 moved by 1/2
    assert np.square(whole).sum(axis=1).max() == 12 * 16


def test_kernels_give_the_same_weights_from_distances_and_signs_in_order() -> None:
    """As native/include/vectors.h reads them: vectors from 107 on have an odd number of signs."""
    codes = np.arange(1 << 16, dtype=np.uint16)
    made = kernel_codes(codes)
    table = kernel_table()
    assert set(np.unique(table)) == {19, 23, 27}  # a plane numbers four
    negative = made[:, None] >> np.arange(8) & 1
    negative[:, 7] = (negative[:, :7].sum(axis=1) + (made >> 8 >= 107)) % 2
    distances = table[made >> 8].astype(int) - 17
    weights = np.where(negative, -distances, distances) + np.where(made & 128, -1, 1)[:, None]
    np.testing.assert_array_equal(weights, decode(codes.reshape(-1, 1)))
    assert len(np.unique(made)) == 1 << 16


@pytest.mark.parametrize("power", [1, 2, 8, 64, 1024])
def test_hadamard_undoes_itself_exactly(power: int) -> None:
    whole = np.random.default_rng(0).integers(-1000, 1001, (5, power)).astype(np.float32)
    np.testing.assert_array_equal(hadamard(hadamard(whole)), power * whole)
    signs = np.array(
        [[(-1) ** bin(i & j).count("1") for j in range(power)] for i in range(min(power, 64))]
    )
    np.testing.assert_array_equal(hadamard(whole)[:, : len(signs)], whole @ signs.T)


@pytest.mark.parametrize("size", SIZES)
def test_rotations_are_orthogonal_and_undone_by_the_transposed(size: int) -> None:
    matrix = hartley_matrix(odd_part(size))
    assert np.abs(matrix).max() <= np.sqrt(2 / len(matrix)) + 1e-7
    turned = rotate(np.eye(size, dtype=np.float32), matrix).astype(np.float64)
    assert np.abs(turned @ turned.T - np.eye(size)).max() <= 1e-6
    x = np.random.default_rng(1).standard_normal((3, size), np.float32)
    back = rotate(rotate(x, matrix.T), matrix)
    assert np.abs(back - x).max() <= 1e-6 * np.abs(x).max() * np.sqrt(len(matrix)) + 1e-6


def test_a_matrix_is_its_definition() -> None:
    """With each factor of the product as a matrix of its own, in float64."""
    matrix = random_lattice(24, 40, stages=2)
    turn = {
        size: rotate(np.eye(size), base.astype(np.float64)).T
        for size, base in ((40, matrix.input_matrix), (24, matrix.output_matrix))
    }
    inner = np.zeros((24, 40))
    for codes, scale in zip(matrix.codes, matrix.stage_scales, strict=True):
        literal = [[literal_weights(int(code)) for code in row] for row in codes]
        inner += np.array(literal).reshape(24, 40) * scale
    want = np.diag(matrix.output_factors) @ turn[24] @ np.diag(matrix.row_scales) @ inner
    want = want @ turn[40].T @ np.diag(matrix.input_factors)
    assert np.abs(matrix.float32() - want).max() <= 1e-6 * np.abs(want).max()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"codes": np.zeros((1, 8, 4), np.int16)}, "codes must be"),
        ({"codes": np.zeros((3, 8, 4), np.uint16)}, "at most 2 stages"),
        ({"codes": np.zeros((1, 8, 257), np.uint16)}, "at most 255; got .*257"),
        ({"row_scales": np.ones(7, np.float32)}, "row_scales must be"),
        ({"input_matrix": np.ones((3, 3), np.float32)}, "input_matrix must be"),
    ],
)
def test_parts_that_do_not_fit_are_refused(changes: dict[str, np.ndarray], message: str) -> None:
    good = random_lattice(8, 32)
    parts = {name: getattr(good, name) for name in LatticeMatrix.__slots__} | changes
    with pytest.raises(UnsupportedInputError, match=message):
        LatticeMatrix(**parts)
