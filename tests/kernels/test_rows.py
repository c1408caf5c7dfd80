"""Picking rows of a table."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.errors import UnsupportedInputError
from quire.kernels.cpu.backend import CpuBackend

pytestmark = pytest.mark.kernels("gather_rows", "add_rows", "spread_columns")

BACKEND = CpuBackend(threads=1)


@pytest.mark.parametrize("columns", [1, 15, 16, 35])
@pytest.mark.parametrize("rows", [[], [4], [0, 4, 4, 2]])
def test_rows_are_gathered_and_added(isa: str, columns: int, rows: list[int]) -> None:
    rng = np.random.default_rng(0)
    table = rng.standard_normal((5, columns)).astype(np.float32)
    x = rng.standard_normal((len(rows), columns)).astype(np.float32)
    index = np.array(rows, np.int32)
    out = BACKEND.gather_rows(table, index, np.empty_like(x))
    np.testing.assert_array_equal(out, table[index])
    scattered = BACKEND.scatter_rows(x, index, table.copy())
    want = table.copy()
    for row, values in zip(rows, x, strict=True):
        want[row] = values
    np.testing.assert_array_equal(scattered, want)
    want = x + table[index]
    np.testing.assert_array_equal(BACKEND.add_rows(x, table, index), want)


@pytest.mark.parametrize("row", [-1, 5])
def test_rows_outside_are_refused_and_nothing_is_written(row: int) -> None:
    table, x = np.ones((5, 4), np.float32), np.zeros((2, 4), np.float32)
    index = np.array([0, row], np.int32)
    with pytest.raises(UnsupportedInputError, match=r"rows must be in \[0, 5\)"):
        BACKEND.gather_rows(table, index, x)
    with pytest.raises(UnsupportedInputError, match=r"rows must be in \[0, 5\)"):
        BACKEND.add_rows(x, table, index)
    with pytest.raises(UnsupportedInputError, match=r"rows must be in \[0, 2\)"):
        BACKEND.scatter_rows(table[:2], np.array([0, row], np.int32), x)
    assert not x.any()


@pytest.mark.parametrize("columns", [[], [6], [5, 0, 3]])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_columns_are_placed_in_wider_rows(isa: str, rows: int, columns: list[int]) -> None:
    x = np.random.default_rng(0).standard_normal((rows, len(columns))).astype(np.float32)
    want = np.full((rows, 7), -np.inf, np.float32)
    want[:, columns] = x
    out = BACKEND.spread_columns(x, np.array(columns, np.int32), np.ones_like(want))
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("column", [-1, 7])
def test_columns_outside_are_refused_and_nothing_is_written(column: int) -> None:
    x, out = np.ones((1, 2), np.float32), np.zeros((1, 7), np.float32)
    with pytest.raises(UnsupportedInputError, match=r"columns must be in \[0, 7\)"):
        BACKEND.spread_columns(x, np.array([0, column], np.int32), out)
    with pytest.raises(UnsupportedInputError, match=r"x must have shape \(1, 3\)"):
        BACKEND.spread_columns(x, np.zeros(3, np.int32), out)
    assert not out.any()


def test_wrong_shapes_are_refused() -> None:
    table = np.ones((5, 4), np.float32)
    with pytest.raises(UnsupportedInputError, match="results"):
        BACKEND.gather_rows(table, np.zeros(2, np.int32), np.zeros((3, 4), np.float32))
    with pytest.raises(ValueError, match="contiguous"):
        BACKEND.gather_rows(table, np.zeros(4, np.int32)[::2], np.zeros((2, 4), np.float32))


def test_elements_of_another_size_are_refused() -> None:
    table, out = np.ones((5, 4), np.float32), np.zeros((2, 4), np.float32)
    with pytest.raises(ValueError, match="elements must have 4 bytes; got 8"):
        BACKEND.gather_rows(table, np.zeros(2, np.int64), out)
    with pytest.raises(ValueError, match="elements must have 4 bytes; got 8"):
        BACKEND.gather_rows(table.astype(np.float64), np.zeros(2, np.int32), out)
