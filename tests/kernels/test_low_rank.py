"""Adapters of low rank: what is added, and that a row's bits are its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire.core.errors import UnsupportedInputError
from quire.kernels.batch.forward_batch import BatchRows, ForwardBatch
from quire.kernels.cpu.backend import CpuBackend
from quire.kernels.low_rank import LowRankPart, RowGroups, group_rows
from quire.kernels.matrices.host_tensor import HostTensor

pytestmark = pytest.mark.kernels("add_low_rank")

BACKEND = CpuBackend(threads=1)
#: Inputs, outputs of the stacked matrices, ranks: tails of vectors, of panels and of ranks.
SHAPES = [
    (1, (1,), (1,)),
    (35, (64, 7), (3, 5)),
    (64, (130,), (8,)),
    (96, (65, 64, 63), (16, 4, 1)),
    (2048, (300, 2100), (64, 64)),
]


def tensor(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> HostTensor:
    values = rng.standard_normal(shape).astype(np.float32)
    if dtype == "bfloat16":
        return HostTensor("x", dtype, (values.view(np.uint32) >> 16).astype(np.uint16))
    return HostTensor("x", dtype, values.astype(dtype))


def parts(
    seed: int, shape: tuple[int, tuple[int, ...], tuple[int, ...]], dtype: str = "float32"
) -> list[LowRankPart]:
    rng, first, made = np.random.default_rng(seed), 0, []
    columns, outputs, ranks = shape
    for rows, rank in zip(outputs, ranks, strict=True):
        down, up = tensor(rng, (rank, columns), dtype), tensor(rng, (rows, rank), dtype)
        made.append(LowRankPart(first, down, up, 0.5 + rank))
        first += rows
    return made


def exact(own: list[LowRankPart], x: np.ndarray, num_outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what is added in float64, and the sum of the sizes of all products."""
    added, sizes = np.zeros((2, len(x), num_outputs))
    for part in own:
        down, up = (half.float32().astype(np.float64) for half in (part.down, part.up))
        columns = slice(part.first_output, part.first_output + len(up))
        added[:, columns] = part.scale * (x @ down.T) @ up.T
        sizes[:, columns] = part.scale * (np.abs(x) @ np.abs(down.T)) @ np.abs(up.T)
    return added, sizes


def run(groups: list[tuple[Any, list[int]]], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Add each adapter to its rows, in a copy."""
    rows = [row for _, own in groups for row in own]
    ends = np.cumsum([len(own) for _, own in groups]).tolist()
    bounds = [(held, end - len(own), end) for (held, own), end in zip(groups, ends, strict=True)]
    return BACKEND.add_low_rank(bounds, np.array(rows, np.int32), x, y.copy())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_sum_is_right(isa: str, threads: int, shape: Any, dtype: str) -> None:
    columns, outputs, _ = shape
    rng = np.random.default_rng(1)
    x = rng.standard_normal((70, columns)).astype(np.float32)
    y = rng.standard_normal((70, sum(outputs))).astype(np.float32)
    own = parts(2, shape, dtype)
    held = BACKEND.low_rank(own, columns, sum(outputs))
    rows = [69, 0, 3, *range(4, 69)]
    got = run([(held, rows)], x, y)
    added, sizes = exact(own, x.astype(np.float64), sum(outputs))
    added[[1, 2]] = 0
    assert (np.abs(got - (y + added)) <= 2**-22 * (sizes + np.abs(y) + np.abs(added))).all()
    np.testing.assert_array_equal(got[[1, 2]], y[[1, 2]])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_alone_has_the_bits_it_has_in_company(isa: str, threads: int, shape: Any) -> None:
    columns, outputs, _ = shape
    rng = np.random.default_rng(1)
    x = rng.standard_normal((140, columns)).astype(np.float32)
    y = rng.standard_normal((140, sum(outputs))).astype(np.float32)
    first, second = (BACKEND.low_rank(parts(seed, shape), columns, sum(outputs)) for seed in (2, 3))
    together = run([(first, [5, *range(7, 100)]), (second, [2, 139, 110])], x, y)
    for held, row in ((first, 5), (first, 99), (second, 139), (second, 2)):
        alone = run([(held, [0])], x[row : row + 1], y[row : row + 1])
        np.testing.assert_array_equal(together[row], alone[0])
    assert (together[[5, 139]] != y[[5, 139]]).any(axis=1).all()


def test_a_group_may_be_left_out() -> None:
    shape = (8, (4,), (2,))
    held = BACKEND.low_rank(parts(2, shape), 8, 4)
    x, y = np.ones((4, 8), np.float32), np.zeros((4, 4), np.float32)
    BACKEND.add_low_rank([(held, 1, 2)], np.array([0, 2, 3], np.int32), x, y)
    assert y.any(axis=1).tolist() == [False, False, True, False]


@pytest.mark.parametrize("row", [-1, 4])
def test_rows_outside_are_refused_and_nothing_is_written(row: int) -> None:
    held = BACKEND.low_rank(parts(2, (8, (4,), (2,))), 8, 4)
    x, y = np.ones((4, 8), np.float32), np.zeros((4, 4), np.float32)
    with pytest.raises(UnsupportedInputError, match=r"rows must be in \[0, 4\)"):
        BACKEND.add_low_rank([(held, 0, 2)], np.array([0, row], np.int32), x, y)
    assert not y.any()


def test_matrices_of_another_linear_are_refused() -> None:
    with pytest.raises(UnsupportedInputError, match=r"must be \(R, 9\)"):
        BACKEND.low_rank(parts(2, (8, (4,), (2,))), 9, 4)
    with pytest.raises(UnsupportedInputError, match="up to output 3"):
        BACKEND.low_rank(parts(2, (8, (4,), (2,))), 8, 3)


def groups_of(adapters: list[int], lengths: list[int], indices: list[int] | None) -> RowGroups:
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    none = np.zeros(0, np.int32)
    batch = ForwardBatch(none, none, none, none, starts, none, none)
    batch.adapters = np.array(adapters, np.int32)
    rows = BatchRows(batch, None if indices is None else np.array(indices, np.int32))
    found = group_rows(rows, lambda array: array)
    assert group_rows(rows, lambda array: array) is found
    return found


def test_rows_are_grouped_by_their_requests_adapter() -> None:
    found = groups_of([2, 0, 1, 2], [2, 3, 1, 1], None)
    assert found.keys == (1, 2)
    assert found.bounds == ((0, 1), (1, 4))
    assert found.rows.tolist() == [5, 0, 1, 6]
    wanted = groups_of([2, 0, 1, 2], [2, 3, 1, 1], [6, 4, 1])
    assert (wanted.keys, wanted.bounds) == ((2,), ((0, 2),))
    assert wanted.rows.tolist() == [0, 2]
    without = groups_of([0, 2], [1, 1], [0])
    assert (without.keys, without.bounds, len(without.rows)) == ((), (), 0)
