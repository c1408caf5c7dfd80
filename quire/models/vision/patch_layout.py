"""The order and the places of a picture's patches where its size is its own (Qwen2-VL).

S patches of a picture, R squares of them, which become its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.core.model.vision_config import VisionConfig

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PatchLayout:
    """Layout of one picture.

    Attributes:
        order: (S,), patch of each row of the encoder: square after square, and where there are
            windows square after square of each window.
        positions: (2, S), place in its column and in its row, of each row of the encoder.
        windows: Rows of each window; of the whole picture where there are none.
        places: (R,), index of the encoder's square for each row of the prompt.
    """

    order: IntArray
    positions: IntArray
    windows: Sequence[int]
    places: IntArray


def lay_out(down: int, across: int, config: VisionConfig) -> PatchLayout:
    """Return the layout of a picture of ``down`` x ``across`` patches, multiples of ``merge``."""
    merge = config.merge
    squares = np.arange(down * across // merge**2, dtype=np.int32)
    grid = squares.reshape(down // merge, across // merge)
    edge = config.window_size // (merge * config.patch_size) or max(grid.shape)
    parts = [
        grid[top : top + edge, left : left + edge].ravel()
        for top in range(0, grid.shape[0], edge)
        for left in range(0, grid.shape[1], edge)
    ]
    visited = np.concatenate(parts)
    patches = np.arange(down * across, dtype=np.int32).reshape(
        down // merge, merge, across // merge, merge
    )
    order = patches.swapaxes(1, 2).reshape(-1, merge**2)[visited].ravel()
    places = np.empty_like(visited)
    places[visited] = squares
    return PatchLayout(
        order=order,
        positions=np.stack(np.divmod(order, np.int32(across))).astype(np.int32),
        windows=[merge**2 * len(part) for part in parts],
        places=places,
    )
