"""Looking vectors up on every instruction set, against all costs written out."""

import numpy as np
import pytest

from quire.kernels.cpu.vector_search import VectorTable
from quire.kernels.matrices.vector_grids import vector_grid

pytestmark = pytest.mark.kernels("vector_costs", "nearest_vectors")

TABLES = ("IQ2_XXS", "IQ2_S", "IQ3_S", "IQ1")


def costs_of_all(grid, x, weights, flipped, scales):
    """Return (N, S, V) float64, their squares and products (N, V)."""
    grid, x, weights = (part.astype(np.float64) for part in (grid, x, weights))
    squares = weights @ (grid * grid).T
    each = (weights * x)[:, None, :] * grid
    products = each.sum(axis=2) - 2 * flipped[:, None] * each.min(axis=2)
    scales = scales.astype(np.float64)[:, :, None]
    return scales * scales * squares[:, None] - 2 * scales * products[:, None], squares, products


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("count", [0, 1, 77])
def test_costs_and_nearest(name, count, isa):
    generator = np.random.default_rng(count)
    grid = vector_grid(name).astype(np.float32)
    x = generator.standard_normal((count, grid.shape[1])).astype(np.float32) * 20
    flipped = np.zeros(count, np.uint8)
    if name != "IQ1":
        x, flipped[::3] = np.abs(x), 1
    weights = generator.uniform(0.1, 3, x.shape).astype(np.float32)
    weights[5:7] = 0
    scales = generator.uniform(0.3, 2, (count, 5)).astype(np.float32)
    want, squares, products = costs_of_all(grid, x, weights, flipped, scales)
    table = VectorTable(grid)
    room = 1e-5 * np.abs(want).max(initial=1)
    np.testing.assert_allclose(
        table.costs(x, weights, flipped, scales), want.min(axis=2, initial=np.inf), atol=room
    )
    indices, got_squares, got_products = table.nearest(x, weights, flipped, scales[:, 2])
    rows = np.arange(count)
    best = want[rows, 2, indices] if count else np.zeros(0)
    np.testing.assert_allclose(best, want[:, 2].min(axis=1, initial=np.inf), atol=room)
    np.testing.assert_allclose(got_squares, squares[rows, indices], rtol=1e-5)
    np.testing.assert_allclose(got_products, products[rows, indices], rtol=1e-4, atol=room)


def test_of_equal_vectors_the_first_is_taken(isa):
    grid = np.tile(vector_grid("IQ3_XXS").astype(np.float32), (2, 1))
    x = grid[[255, 256, 300, 1]] * np.float32(0.5)
    ones = np.ones_like(x)
    found = VectorTable(grid).nearest(x, ones, np.zeros(4, np.uint8), np.full(4, 0.5))
    assert found[0].tolist() == [255, 0, 44, 1]


def test_tables_and_buffers_of_other_sizes_are_refused():
    x, flips = np.ones((4, 8), np.float32), np.zeros(4, np.uint8)
    for shape in ((255, 8), (256, 7)):
        with pytest.raises(ValueError, match="width must be 4 or 8, and count a multiple of 256"):
            VectorTable(np.ones(shape)).costs(x, x, flips, x[:, :1])
    table = VectorTable(np.ones((256, 8)))
    with pytest.raises(ValueError, match="buffer must have at least 4 bytes; got 3"):
        table.costs(x, x, flips[:3], x[:, :1])
    with pytest.raises(ValueError, match="buffer must have at least 128 bytes; got 96"):
        table.nearest(x, x[:3], flips, x[:, 0])
