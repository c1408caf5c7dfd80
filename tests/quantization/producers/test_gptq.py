"""GPTQ against its definition without blocks or factors, and against plain rounding."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.errors import ModelLoadError
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.quantization.producers.gptq import GPTQSettings, quantize_gptq
from quire.quantization.producers.integer_grid import IntegerGrid


def correlated(columns: int, count: int = 4096, seed: int = 0) -> np.ndarray:
    """Return inputs (count, columns) that few directions explain, some columns much larger."""
    random = np.random.default_rng(seed)
    mix = random.standard_normal((columns // 4, columns))
    inputs = random.standard_normal((count, columns // 4)) @ mix
    inputs += 0.3 * random.standard_normal((count, columns))
    return (inputs * random.lognormal(0, 0.7, columns)).astype(np.float32)


def plain(weight: np.ndarray, grid: IntegerGrid) -> np.ndarray:
    """Round each weight to the nearest code of its group's grid."""
    size = grid.group_size or weight.shape[1]
    made = np.empty_like(weight)
    for begin in range(0, weight.shape[1], size):
        part = weight[:, begin : begin + size]
        scales, zeros = (numbers[:, None] for numbers in grid.fit(part))
        made[:, begin : begin + size] = (grid.codes(part, scales, zeros) - zeros) * scales
    return made


def defined(
    weight: np.ndarray, hessian: np.ndarray, grid: IntegerGrid, damping: float
) -> np.ndarray:
    """Optimal brain quantization in the order of the columns: the inverse shrinks one by one."""
    left, columns = weight.astype(np.float64), weight.shape[1]
    damped = hessian + damping * np.diagonal(hessian).mean() * np.eye(columns)
    inverse = np.linalg.inv(damped)
    made = np.empty_like(left)
    for column in range(columns):
        if column % grid.group_size == 0:
            part = left[:, column : column + grid.group_size].astype(np.float32)
            scales, zeros = grid.fit(part)
        codes = grid.codes(left[:, column].astype(np.float32), scales, zeros)
        made[:, column] = (codes - zeros) * scales
        error = (left[:, column] - made[:, column]) / inverse[0, 0]
        left[:, column:] -= error[:, None] * inverse[0]
        inverse = inverse[1:, 1:] - np.outer(inverse[1:, 0], inverse[0, 1:]) / inverse[0, 0]
    return made


def error_of(made: QuantizedTensor | np.ndarray, weight: np.ndarray, inputs: np.ndarray) -> float:
    values = made.float32() if isinstance(made, QuantizedTensor) else made
    return float(np.square((values - weight) @ inputs.T).mean())


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_it_is_the_definition(bits: int, symmetric: bool) -> None:
    weight = np.random.default_rng(1).standard_normal((24, 64), np.float32)
    inputs = correlated(64).astype(np.float64)
    hessian, grid = inputs.T @ inputs, IntegerGrid(bits, 32, symmetric)
    made = quantize_gptq("w", weight, hessian, grid)
    want = defined(weight, hessian, grid, 0.01)
    # Float32 next to float64: a weight on the border of two codes may take the other one.
    assert (made.float32() != want.astype(np.float32)).mean() < 0.01
    assert made.form.zero_type == (None if symmetric else "uint8")


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize(("bits", "most"), [(4, 0.8), (3, 0.7)])
def test_it_loses_less_than_plain_rounding(bits: int, most: float, act_order: bool) -> None:
    """As the paper shows for inputs that go together."""
    weight = np.random.default_rng(1).standard_normal((128, 256), np.float32)
    inputs = correlated(256)
    grid = IntegerGrid(bits, 128, symmetric=False)
    made = quantize_gptq("w", weight, inputs.T @ inputs, grid, GPTQSettings(act_order))
    assert made.form.has_input_order == act_order
    ours, theirs = (error_of(m, weight, inputs) for m in (made, plain(weight, grid)))
    assert ours <= most * theirs


def test_whole_rows_and_columns_without_input() -> None:
    weight = np.random.default_rng(1).standard_normal((16, 100), np.float32)
    inputs = correlated(100)
    inputs[:, 7] = 0
    made = quantize_gptq("w", weight, inputs.T @ inputs, IntegerGrid(4, 0))
    assert made.scales.shape == (16, 1)
    assert (made.float32()[:, 7] == 0).all()


def test_the_same_twice() -> None:
    weight = np.random.default_rng(1).standard_normal((64, 128), np.float32)
    inputs = correlated(128)
    first, second = (
        quantize_gptq("w", weight, inputs.T @ inputs, IntegerGrid(4, 32)).float32()
        for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("of", ["weight", "hessian"])
def test_numbers_that_are_none_are_refused(of: str) -> None:
    arrays = {"weight": np.ones((4, 32), np.float32), "hessian": np.eye(32, dtype=np.float32)}
    arrays[of][1, 1] = np.nan
    with pytest.raises(ModelLoadError, match="w: weights and the sums of its inputs"):
        quantize_gptq("w", grid=IntegerGrid(4, 32), **arrays)


def test_sums_that_are_no_hessian_are_refused() -> None:
    weight = np.ones((4, 32), np.float32)
    with pytest.raises(ModelLoadError, match="positive definite"):
        quantize_gptq("w", weight, -np.eye(32, dtype=np.float32), IntegerGrid(4, 32))


@pytest.mark.parametrize("columns", [96, 128, 80])
@pytest.mark.parametrize("symmetric", [True, False])
def test_group_aware_order_is_that_of_columns_put_in_order(columns, symmetric):
    """Groups by their largest input, columns by theirs; a short last group stays where it is."""
    inputs = correlated(columns)
    hessian = (inputs.T @ inputs).astype(np.float64)
    weight = np.random.default_rng(3).standard_normal((24, columns)).astype(np.float32)
    grid, sizes = IntegerGrid(3, 32, symmetric), np.diagonal(hessian)
    groups = [np.arange(begin, min(begin + 32, columns)) for begin in range(0, columns, 32)]
    groups = [group[np.argsort(-sizes[group])] for group in groups]
    last = [groups.pop()] if columns % 32 else []
    order = np.concatenate(sorted(groups, key=lambda group: -sizes[group].max()) + last)
    assert (order != np.arange(columns)).any()
    want = quantize_gptq("m", weight[:, order], hessian[np.ix_(order, order)], grid).float32()
    made = quantize_gptq("m", weight, hessian, grid, GPTQSettings(group_aware=True))
    assert made.input_order is None
    np.testing.assert_array_equal(made.float32()[:, order], want)
    kept = quantize_gptq("m", weight, hessian, grid)
    assert error_of(made, weight, inputs) < error_of(kept, weight, inputs)
