"""Adapters of low rank on native memory, all of a batch's in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from quire.core.errors import UnsupportedInputError
from quire.kernels.cpu.native import DTYPE_CODES, native
from quire.kernels.low_rank import LowRankPart, check_parts


class CpuLowRank:
    """One adapter of one linear; see ``kernels/low_rank.py``.

    Attributes:
        nbytes: Memory of its matrices.
        matrix: The native module's object of the adapter.
    """

    def __init__(self, parts: Sequence[LowRankPart], in_features: int, out_features: int) -> None:
        check_parts(parts, in_features, out_features)
        rank = sum(part.down.shape[0] for part in parts)
        code = DTYPE_CODES[parts[0].down.dtype]
        self.matrix: Any = native.LowRankMatrix(in_features, out_features, rank, code)
        for part in parts:
            outputs, own = part.up.shape
            down, up = (np.ascontiguousarray(half.array) for half in (part.down, part.up))
            self.matrix.add(part.first_output, outputs, own, part.scale, down, up)
        self.nbytes: int = self.matrix.nbytes


def add_low_rank(
    groups: Sequence[tuple[CpuLowRank, int, int]],
    rows: np.ndarray,
    x: np.ndarray,
    out: np.ndarray,
) -> np.ndarray:
    """Add to rows of ``out``; see :meth:`quire.kernels.backend.Backend.add_low_rank`."""
    matrices = [held.matrix for held, _, _ in groups]
    begins, ends = [begin for _, begin, _ in groups], [end for _, _, end in groups]
    if not native.add_low_rank(matrices, rows, begins, ends, x, out, len(x)):
        raise UnsupportedInputError(f"[low_rank] rows must be in [0, {len(x)}); got others.")
    return out


def adjust_rows(
    x: np.ndarray, rows: np.ndarray, factors: np.ndarray, shifts: np.ndarray
) -> np.ndarray:
    """Change rows of ``x``; see :meth:`quire.kernels.backend.Backend.adjust_rows`."""
    x[rows] = x[rows] * factors + shifts
    return x
