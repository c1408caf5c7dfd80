"""Muon's step, by what it must do to a matrix."""

import pytest

torch = pytest.importorskip("torch")

from quire.training.muon import Muon  # noqa: E402


def test_a_tall_matrix_moves_further_than_a_wide_one():
    """By the root of rows over columns; a wide one as far as a square one."""
    gradient = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    moved = []
    for own in (gradient, gradient.T.contiguous()):
        matrix = torch.zeros_like(own, requires_grad=True)
        matrix.grad = own.clone()
        Muon([matrix], lr=0.1).step()
        moved.append(matrix.detach())
    tall, wide = moved
    torch.testing.assert_close(tall, 2 * wide.T)
    sizes = torch.linalg.svdvals(wide)
    assert sizes.min() > 0.05 and sizes.max() < 0.13, "about the rate, in all directions"
