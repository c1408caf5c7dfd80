"""Adapters of low rank in plain torch, one row at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from quire.kernels.low_rank import LowRankPart, check_parts


class ReferenceLowRank:
    """One adapter of one linear, in float32; see ``kernels/low_rank.py``."""

    def __init__(self, parts: Sequence[LowRankPart], in_features: int, out_features: int) -> None:
        check_parts(parts, in_features, out_features)
        self.parts = [
            (
                part.first_output,
                torch.from_numpy(part.down.float32().copy()),
                torch.from_numpy(part.up.float32().copy()),
                part.scale,
            )
            for part in parts
        ]
        self.nbytes: int = sum(down.nbytes + up.nbytes for _, down, up, _ in self.parts)


def add_low_rank(
    groups: Sequence[tuple[ReferenceLowRank, int, int]],
    rows: np.ndarray,
    x: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    """Add to rows of ``out``; see :meth:`quire.kernels.backend.Backend.add_low_rank`."""
    for held, begin, end in groups:
        for row in rows[begin:end].tolist():
            for first, down, up, scale in held.parts:
                out[row, first : first + len(up)] += up @ (scale * (down @ x[row]))
    return out


def adjust_rows(
    x: torch.Tensor, rows: np.ndarray, factors: torch.Tensor, shifts: torch.Tensor
) -> torch.Tensor:
    """Change rows of ``x``; see :meth:`quire.kernels.backend.Backend.adjust_rows`."""
    own = torch.from_numpy(rows.astype(np.int64))
    x[own] = x[own] * factors + shifts
    return x
