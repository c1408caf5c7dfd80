"""The features of a picture's tiles as one picture's again, projected and resized (LLaVA-NeXT).

W width of the encoder, D model dim, E features of a tile's edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.core.model.picture_tiling import Tiling
from quire.kernels.backend import Array, Backend
from quire.models.vision.projectors import Projector
from quire.models.vision.slices import Slices

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]

#: Rows that are projected at once, of a picture: what is not resized yet is as wide as D.
STRIP = 8


class TileJoiner:
    """Makes the rows of a picture of its whole and its tiles.

    Args:
        backend: The backend that computes.
        projector: Projector from W to D, each feature by itself.
        newline: (D,), the end of each row.
    """

    def __init__(self, backend: Backend, projector: Projector, newline: FloatArray) -> None:
        self._backend, self._projector = backend, projector
        self._newline = newline

    def join(self, features: Sequence[Array], tiling: Tiling) -> Slices[Array]:
        """Return (num_rows, D): rows of the whole, then those of the tiled picture, row by row.

        Args:
            features: (E ** 2, W), of the whole and of each tile.
            tiling: Arrangement of the tiles.
        """
        whole, *tiles = (np.asarray(self._backend.to_numpy(one)) for one in features)
        found = np.empty((tiling.num_rows, self._projector.width), np.float32)
        start = tiling.edge**2
        found[:start] = yield from self._project(whole)
        if not tiles:
            found[start] = self._newline
            return self._backend.from_numpy(found)
        shape = tiling.out_height, tiling.out_width + 1, self._projector.width
        rows = found[start:].reshape(shape)
        rows[:, -1] = self._newline
        down = Neighbours.of(tiling.height, tiling.out_height)
        across = Neighbours.of(tiling.width, tiling.out_width)
        for top in range(0, tiling.out_height, STRIP):
            part = down.cut(slice(top, top + STRIP))
            first, end = int(part.before[0]), int(part.after[-1]) + 1
            strip = _cut(tiles, tiling, first, end)
            projected = yield from self._project(strip.reshape(-1, strip.shape[-1]))
            made = part.between(projected.reshape(*strip.shape[:2], -1), 0, first)
            rows[top : top + STRIP, :-1] = across.between(made, 1)
        return self._backend.from_numpy(found)

    def _project(self, features: FloatArray) -> Slices[FloatArray]:
        rows = self._backend.from_numpy(np.ascontiguousarray(features, np.float32))
        projected = yield from self._projector.project(rows, 1, len(features))
        return np.asarray(self._backend.to_numpy(projected), np.float32)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The two values between which each new one lies, and the second one's share.

    Source: bilinear interpolation of torch, ``align_corners=False``.
    """

    before: IntArray
    after: IntArray
    share: FloatArray

    @classmethod
    def of(cls, size: int, new_size: int) -> Neighbours:
        """Return those of ``new_size`` values in place of ``size``."""
        centres = (np.arange(new_size) + 0.5) * (size / max(new_size, 1)) - 0.5
        centres = np.maximum(centres, 0.0)
        before = centres.astype(np.int64)
        share = (centres - before).astype(np.float32)
        return cls(before, np.minimum(before + (share > 0), size - 1), share)

    def cut(self, part: slice) -> Neighbours:
        """Return those of some of the new values."""
        return Neighbours(self.before[part], self.after[part], self.share[part])

    def between(self, values: FloatArray, axis: int, first: int = 0) -> FloatArray:
        """Return the new values along an axis of three, whose first value has number ``first``."""
        before = values.take(self.before - first, axis)
        if not self.share.any():
            return before
        shape = [1, 1, 1]
        shape[axis] = -1
        share = self.share.reshape(shape)
        mixed: FloatArray = before + share * (values.take(self.after - first, axis) - before)
        return mixed


def _cut(tiles: Sequence[FloatArray], tiling: Tiling, first: int, end: int) -> FloatArray:
    """Return rows of the picture, (end - first, width, W), of the tiles that they lie across."""
    lines = []
    for line in range(tiling.top + first, tiling.top + end):
        row, place = divmod(line, tiling.edge)
        start = place * tiling.edge
        across = tiles[row * tiling.columns : (row + 1) * tiling.columns]
        whole = np.concatenate([tile[start : start + tiling.edge] for tile in across])
        lines.append(whole[tiling.left : tiling.left + tiling.width])
    return np.stack(lines)
