"""Weights that are computed with as their rounded values and trained as what they are.

The values are those of :func:`quire.quantization.producers.round_to_nearest.quantize_rtn`, bit for
bit; gradients go through the rounding as if it were not there (straight-through estimator). N rows,
K columns, G groups. Source: Bengio et al. 2013; Jacob et al. 2018.
"""

from __future__ import annotations

from typing import Any

import torch

from quire.quantization.producers.integer_grid import SMALLEST_SCALE, IntegerGrid


class FakeQuantize(torch.nn.Module):
    """A parametrization of a weight (N, K) float32, see ``torch.nn.utils.parametrize``.

    Args:
        grid: The codes, found without a search.
    """

    def __init__(self, grid: IntegerGrid) -> None:
        super().__init__()
        assert not grid.search, grid
        self.grid = grid

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the rounded weights."""
        rounded: torch.Tensor = _StraightThrough.apply(  # type: ignore[no-untyped-call]
            weight, self.grid
        )
        return rounded


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, grid: IntegerGrid) -> torch.Tensor:
        return round_weights(weight, grid)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


def round_weights(weight: torch.Tensor, grid: IntegerGrid) -> torch.Tensor:
    """Return the values that plain rounding leaves of a matrix.

    Args:
        weight: (N, K) float32; the last group may have fewer columns than the others.
        grid: The codes.
    """
    rows, columns = weight.shape
    size = grid.group_size or columns
    whole = columns // size * size
    parts = [_rounded(weight[:, :whole].reshape(rows, -1, size), grid).reshape(rows, whole)]
    if whole < columns:
        parts.append(_rounded(weight[:, None, whole:], grid)[:, 0])
    return torch.cat(parts, dim=1)


def _rounded(groups: torch.Tensor, grid: IntegerGrid) -> torch.Tensor:
    """Return the values of groups of columns, (N, G, group)."""
    low = groups.amin(-1, keepdim=True).clamp(max=0)
    high = groups.amax(-1, keepdim=True).clamp(min=0)
    if grid.symmetric:
        high = torch.maximum(high, -low)
        low = -high
    # A number of Python's would be multiplied by its inverse on a GPU, which rounds otherwise.
    steps = (high - low) / torch.full_like(high, grid.highest)
    scales = steps.clamp(min=float(SMALLEST_SCALE)).half().float()
    if grid.symmetric:
        zeros = torch.full_like(scales, 1 << grid.bits - 1)
    else:
        zeros = (-low / scales).round().clamp(0, grid.highest)
    codes = ((groups / scales).round() + zeros).clamp(0, grid.highest)
    return (codes - zeros) * scales
