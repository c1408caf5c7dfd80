"""Clusters of each row's weights: near the best there are, and better than even steps."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.errors import ModelLoadError
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.quantization.producers.integer_grid import IntegerGrid
from quire.quantization.producers.round_to_nearest import quantize_rtn
from quire.quantization.producers.squeezellm import (
    Clustering,
    column_importance,
    outlier_threshold,
    quantize_tables,
)


@pytest.fixture(scope="module")
def weight() -> np.ndarray:
    random = np.random.default_rng(0)
    return random.standard_t(5, (48, 384)).astype(np.float32) * np.float32(0.02)


@pytest.fixture(scope="module")
def importance() -> np.ndarray:
    random = np.random.default_rng(1)
    inputs = random.standard_normal((256, 384)) * random.lognormal(0, 1, 384)
    return column_importance(inputs.T @ inputs, 384)


def error(made: QuantizedTensor, weight: np.ndarray, importance: np.ndarray) -> float:
    return float((np.square(made.float32() - weight) * importance).sum())


def least_error(values: np.ndarray, counts: np.ndarray, clusters: int) -> float:
    """Return the smallest error that a row can have, by trying every run of sorted weights."""
    order = np.argsort(values)
    values, counts = values[order].astype(float), counts[order]
    sums = [np.concatenate([[0], np.cumsum(counts * values**power)]) for power in range(3)]
    size, moment, square = (part[None, :] - part[:, None] for part in sums)
    cost = square - np.where(size > 0, moment**2 / np.where(size > 0, size, 1), 0)
    cost[np.tri(len(cost), k=-1, dtype=bool)] = np.inf
    best = cost[0]
    for _ in range(clusters - 1):
        best = (best[:, None] + cost).min(axis=0)
    return float(best[-1])


@pytest.mark.parametrize("bits", [3, 4])
def test_clusters_are_nearly_the_best(
    weight: np.ndarray, importance: np.ndarray, bits: int
) -> None:
    rows = weight[:12]
    least = sum(least_error(row, importance, 1 << bits) for row in list(rows))
    made = quantize_tables("w", rows, Clustering(bits, importance))
    assert least * (1 - 1e-6) <= error(made, rows, importance) <= 1.03 * least


@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("group_size", [0, 128])
def test_tables_are_better_than_even_steps(
    weight: np.ndarray, importance: np.ndarray, bits: int, group_size: int
) -> None:
    """Of whole rows and of groups of 128, which have 4 scales where a table has 8 or 16 values."""
    even = [
        quantize_rtn("w", weight, IntegerGrid(bits, group_size, symmetric, search))
        for symmetric in (True, False)
        for search in (False, True)
    ]
    made = quantize_tables("w", weight, Clustering(bits, importance))
    least = min(error(other, weight, importance) for other in even)
    assert error(made, weight, importance) < 0.7 * least


@pytest.mark.parametrize("bits", [3, 4])
def test_outliers_and_importance_lower_the_error_further(
    weight: np.ndarray, importance: np.ndarray, bits: int
) -> None:
    alike = Clustering(bits, np.ones(384))
    plain = error(quantize_tables("w", weight, alike), weight, importance)
    dense = error(quantize_tables("w", weight, Clustering(bits, importance)), weight, importance)
    threshold = outlier_threshold(weight, importance, 0.0045)
    sparse = quantize_tables("w", weight, Clustering(bits, importance, threshold))
    assert sparse.outliers is not None
    assert sparse.outliers.count == round(0.0045 * weight.size)
    assert error(sparse, weight, importance) < 0.9 * dense < 0.9 * 0.8 * plain
    rows, columns = sparse.outliers.rows, sparse.outliers.columns
    kept, whole = sparse.float32()[rows, columns], weight[rows, columns]
    np.testing.assert_allclose(kept, whole, rtol=1e-6)


def test_codes_are_the_nearest_values(weight: np.ndarray) -> None:
    made = quantize_tables("w", weight, Clustering(3, np.ones(384)))
    assert made.tables is not None and (np.diff(made.tables, axis=1) >= 0).all()
    distances = np.abs(made.tables.astype(np.float32)[:, :, None] - weight[:, None, :])
    assert (np.abs(made.float32() - weight) <= distances.min(axis=1) + 1e-9).all()


def test_rows_of_few_different_weights_and_silent_inputs() -> None:
    weight = np.zeros((4, 64), np.float32)
    weight[1] = 0.5
    weight[2, ::2] = -1
    weight[3, :3] = 1, 2, 1e9
    importance = column_importance(np.zeros((64, 64)), 64)
    made = quantize_tables("w", weight, Clustering(4, importance))
    np.testing.assert_array_equal(made.float32()[:3], weight[:3])
    assert np.isfinite(made.float32()).all()
    threshold = outlier_threshold(weight, importance, 0.02)
    sparse = quantize_tables("w", weight, Clustering(4, importance, threshold))
    np.testing.assert_allclose(sparse.float32(), weight, rtol=1e-6)


def test_a_weight_that_is_none_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="w: weights must be finite"):
        quantize_tables("w", np.full((2, 64), np.nan, np.float32), Clustering(4, np.ones(64)))
