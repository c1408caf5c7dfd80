"""Joining of the features of a picture's tiles into one picture's; plain numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: A picture is made smaller only if it is this many times too large in each direction.
TOLERANCE = 1.1


@dataclass(frozen=True, slots=True)
class Tiling:
    """The tiles of a picture that is encoded as a whole and in tiles.

    Attributes:
        rows, columns: Number of rows and columns of tiles; 0 where there is the whole alone.
        edge: Features in a row of a tile, and in a column.
        top, left: Features of padding above and left of the picture's, among those of all tiles.
        height, width: Height and width of the picture, in features.
        out_height, out_width: Height and width that the picture is resized to, in features.
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
            tiles: Number of rows and columns of tiles; 0 for none.
            edge: Features of a tile's edge.
            size: Height and width of the picture before it was laid on the tiles.
            most_squares: Number of tiles' worth of features that are left, at most, about; 0 for
                any.

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
        """Rows of the picture in a prompt: the whole's, then the tiles' lines, each with an end."""
        return self.edge**2 + (self.out_height * (self.out_width + 1) if self.rows else 1)
