"""How the features of a picture's tiles become one picture's again; plain numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: It is made smaller only if it is this much too large, in each direction.
TOLERANCE = 1.1


@dataclass(frozen=True, slots=True)
class Tiling:
    """Of a picture that is encoded as a whole and in tiles.

    Attributes:
        rows, columns: Of tiles; 0 where there is the whole alone.
        edge: Features in a row of a tile, and in a column.
        top, left: Features of padding before the picture's, among those of all tiles.
        height, width: Of the picture, in features.
        out_height, out_width: To which these are resized.
    """

    rows: int
    columns: int
    edge: int
    top: int = 0
    left: int = 0
    height: int = 0
    width: int = 0
    out_height: int = 0
    out_width: int = 0

    @classmethod
    def of(
        cls, tiles: tuple[int, int], edge: int, size: tuple[int, int], most_squares: int
    ) -> Tiling:
        """Return the tiling of a picture.

        Args:
            tiles: Rows and columns; 0 for none.
            edge: Features of a tile's edge.
            size: Height and width of the picture before it was laid on them.
            most_squares: Times the features of a tile that are left, about; 0 for any.

        Source: ``unpad_image`` and ``anyres_max`` of LLaVA-OneVision, whose roundings these are.
        """
        rows, columns = tiles
        if not rows:
            return cls(0, 0, edge)
        (height, width), (old_height, old_width) = (rows * edge, columns * edge), size
        top = left = 0
        if old_width / old_height > width / height:
            top = (height - int(round(old_height * (width / old_width), 7))) // 2
        else:
            left = (width - int(round(old_width * (height / old_height), 7))) // 2
        height, width = height - 2 * top, width - 2 * left
        shrink = math.sqrt(height * width / (most_squares * edge**2)) if most_squares else 0.0
        out = height, width
        if shrink > TOLERANCE:
            out = int(height // shrink), int(width // shrink)
        return cls(rows, columns, edge, top, left, height, width, *out)

    @property
    def num_rows(self) -> int:
        """Of the picture in a prompt: those of the whole, then its own, each with an end."""
        return self.edge**2 + (self.out_height * (self.out_width + 1) if self.rows else 1)
