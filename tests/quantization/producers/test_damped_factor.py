"""Factors in panels and halves against their definitions."""

import numpy as np
import pytest

from quire.core.errors import ModelLoadError
from quire.quantization.producers.damped_factor import (
    PANEL,
    SMALL,
    damped_factor,
    upper_inverse,
)


def sums_of(columns: int) -> np.ndarray:
    inputs = np.random.default_rng(columns).standard_normal((3 * columns + 2, columns))
    return inputs.T @ inputs


@pytest.mark.parametrize("columns", [1, PANEL - 1, PANEL, 2 * PANEL + 44])
def test_the_factor_is_lower_and_its_square_are_the_damped_sums(columns):
    sums = sums_of(columns)
    kept, factor = sums.copy(), damped_factor(sums, 0.1)
    np.testing.assert_array_equal(sums, kept)
    np.testing.assert_array_equal(factor, np.tril(factor))
    damped = sums + 0.1 * np.diagonal(sums).mean() * np.eye(columns)
    np.testing.assert_allclose(factor @ factor.T, damped, atol=1e-12 * damped.max())
    np.testing.assert_allclose(factor, np.linalg.cholesky(damped), atol=1e-12 * damped.max())


@pytest.mark.parametrize("columns", [1, SMALL, SMALL + 1, 500])
def test_the_inverse_is_upper_and_one(columns):
    upper = np.linalg.cholesky(sums_of(columns)).T
    inverse = upper_inverse(upper.astype(np.float32))
    assert inverse.dtype == np.float32
    np.testing.assert_array_equal(inverse, np.triu(inverse))
    np.testing.assert_allclose(inverse @ upper, np.eye(columns), atol=2e-4)


def test_sums_of_few_inputs_take_more_damping():
    """Of rank one, where no share as small as this shows in float64."""
    ones = np.ones((300, 300))
    factor = damped_factor(ones, 1e-15)
    added = np.diagonal(factor @ factor.T) - 1
    assert (added > 2e-15).all() and (added < 1e-11).all()


def test_what_is_not_positive_definite_is_refused():
    with pytest.raises(ModelLoadError, match="positive definite with damping 0.01"):
        damped_factor(-np.eye(300), 0.01)
