"""Rounding columns on every instruction set, bit for bit what its definition says."""

import numpy as np
import pytest

from quire.kernels.cpu.column_rounding import MAX_COLUMNS, round_columns

pytestmark = pytest.mark.kernels("round_columns")


def by_definition(left, reach, scales, zeros, highest):
    left, codes, errors = left.copy(), np.empty(left.shape, np.uint8), np.empty_like(left)
    for column in range(left.shape[1]):
        code = np.clip(np.rint(left[:, column] / scales) + zeros, 0, np.float32(highest))
        codes[:, column] = code
        error = left[:, column] - (code - zeros) * scales
        errors[:, column] = error / reach[column, column]
        for after in range(column + 1, left.shape[1]):
            left[:, after] -= reach[column, after] * errors[:, column]
    return codes, errors


@pytest.mark.parametrize("rows", [0, 1, 16, 37])
@pytest.mark.parametrize("columns", [1, 7, 8, 33, MAX_COLUMNS])
def test_it_is_the_definition(rows, columns, isa):
    random = np.random.default_rng(rows + columns)
    left = random.standard_normal((rows, columns)).astype(np.float32)
    reach = np.triu(random.standard_normal((columns, columns)) * 0.1).astype(np.float32)
    np.fill_diagonal(reach, random.uniform(0.5, 2, columns))
    scales = random.uniform(0.05, 0.5, rows).astype(np.float32)
    zeros = random.integers(0, 16, rows).astype(np.float32)
    want = by_definition(left, reach, scales, zeros, 15)
    for got, wanted in zip(round_columns(left, reach, scales, zeros, 15), want, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_row_alone_has_the_same_bits(isa):
    random = np.random.default_rng(0)
    left = random.standard_normal((40, 64)).astype(np.float32)
    reach = np.triu(np.eye(64) + 0.1).astype(np.float32)
    scales, zeros = np.full(40, 0.1, np.float32), np.full(40, 8, np.float32)
    codes, errors = round_columns(left, reach, scales, zeros, 15)
    alone = round_columns(left[33:34], reach, scales[:1], zeros[:1], 15)
    np.testing.assert_array_equal(alone[0], codes[33:34])
    np.testing.assert_array_equal(alone[1], errors[33:34])


def test_what_does_not_fit_is_refused():
    wide = np.zeros((2, MAX_COLUMNS + 1), np.float32)
    ones = np.ones(2, np.float32)
    with pytest.raises(ValueError, match="at most 128 columns"):
        round_columns(wide, np.eye(MAX_COLUMNS + 1), ones, ones, 15)
    with pytest.raises(ValueError, match="at least"):
        round_columns(wide[:, :4], np.eye(3), ones, ones, 15)
