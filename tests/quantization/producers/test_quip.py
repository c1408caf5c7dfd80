"""QuIP#'s producer: the search among codes, and what errors of inputs do to them."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.errors import ModelLoadError
from quire.kernels.matrices.lattice_codes import decode
from quire.quantization.producers.gptq import quantize_gptq
from quire.quantization.producers.integer_grid import IntegerGrid
from quire.quantization.producers.lattice_search import nearest_codes
from quire.quantization.producers.quip import quantize_quip, rotate_inputs
from quire.quantization.producers.round_to_nearest import quantize_rtn


def test_no_code_is_nearer_than_the_one_found() -> None:
    random = np.random.default_rng(0)
    sizes = random.choice(np.array([0.2, 1, 2, 4], np.float32), (400, 1))
    x = random.standard_normal((400, 8), np.float32) * sizes
    codes, values = nearest_codes(x)
    np.testing.assert_array_equal(decode(codes[:, None]) / np.float32(4), values)
    grid = decode(np.arange(1 << 16, dtype=np.uint16)[:, None]).astype(np.float64) / 4
    for row, value in zip(x.astype(np.float64), values, strict=True):
        best = np.square(grid - row).sum(axis=1).min()
        assert np.square(value - row).sum() <= best + 1e-5 * (1 + row @ row)


def matrix_and_inputs() -> tuple[np.ndarray, np.ndarray]:
    """Rows of different sizes, and inputs that go together."""
    random = np.random.default_rng(1)
    columns = 176
    mixed = random.standard_normal((columns, columns)) * np.exp(random.standard_normal(columns))
    inputs = random.standard_normal((600, columns)) @ mixed / 10
    weight = random.standard_normal((96, columns)) * np.exp(random.normal(0, 0.3, (96, 1)))
    return weight.astype(np.float32), inputs.T @ inputs


def output_error(made: np.ndarray, weight: np.ndarray, products: np.ndarray) -> float:
    difference = made - weight
    return float(np.vdot(difference @ products, difference) / np.vdot(weight @ products, weight))


def test_two_bits_lose_less_than_rounding_and_gptq() -> None:
    weight, products = matrix_and_inputs()
    grid = IntegerGrid(2, 32, True, search=True)
    made = quantize_quip("w", weight, rotate_inputs("w", 176, products, 0.01), 2)
    plain = quantize_quip("w", weight, rotate_inputs("w", 176, None, 0.01), 2)
    error, without, gptq, rounded = (
        output_error(found.float32(), weight, products)
        for found in (
            made,
            plain,
            quantize_gptq("w", weight, products, grid),
            quantize_rtn("w", weight, grid),
        )
    )
    assert error < 0.5 * gptq and error < 0.3 * without
    assert without < 0.7 * rounded


@pytest.mark.parametrize(("bits", "most"), [(2, 0.1), (4, 0.012)])
def test_without_inputs_the_error_is_the_lattices(bits: int, most: float) -> None:
    """Of a normal distribution: 0.0915 of the variance, and a twelfth of that after a stage more.

    Outliers are spread by the rotation: the same matrix with some has the same error.
    """
    random = np.random.default_rng(2)
    weight = random.standard_normal((128, 256), np.float32)
    inputs = rotate_inputs("w", 256, None, 0.01)
    for spikes in (0, 40):
        weight.flat[random.choice(weight.size, spikes, replace=False)] *= 15
        made = quantize_quip("w", weight, inputs, bits).float32()
        assert np.square(made - weight).sum() <= most * np.square(weight).sum()


def test_threads_and_other_matrices_change_no_bit() -> None:
    weight, products = matrix_and_inputs()
    tall = np.concatenate([weight] * 6)
    inputs = rotate_inputs("w", 176, products, 0.01)
    one, two = (quantize_quip("w", tall, inputs, 2, threads) for threads in (1, 2))
    np.testing.assert_array_equal(one.codes, two.codes)
    other = quantize_quip("another", tall, inputs, 2)
    assert (one.output_factors != other.output_factors).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    weight, products = matrix_and_inputs()
    with pytest.raises(ModelLoadError, match="sums of inputs must be finite"):
        rotate_inputs("w", 176, np.where(products > 0, bad, products), 0.01)
    inputs = rotate_inputs("w", 176, products, 0.01)
    weight[3, 4] = bad
    with pytest.raises(ModelLoadError, match="weights must be finite"):
        quantize_quip("w", weight, inputs, 2)


def test_zeros_and_silent_inputs_are_rounded() -> None:
    weight, products = matrix_and_inputs()
    products[:, :8] = products[:8] = 0
    weight[:4] = 0
    made = quantize_quip("w", weight, rotate_inputs("w", 176, products, 0.01), 2)
    assert np.isfinite(made.float32()).all()
    nothing = quantize_quip("w", np.zeros_like(weight), rotate_inputs("w", 176, None, 0.01), 2)
    assert np.abs(nothing.float32()).max() < 1e-20
