"""Pictures in the prompts of a step's rows: the rows that they see, and positions.

Where rows of pictures have positions by time, row and column, a picture takes as many positions of
its prompt as its longer edge has rows, whatever their number; the next token follows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quire.core.engine_request import Picture
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.batch.token_table import IntArray

#: Positions of a row: time, row and column.
_AXES = 3


@dataclass(frozen=True, slots=True)
class Places:
    """The pictures of one request.

    Attributes:
        ahead: Pictures whose rows attend to all rows of the picture, later ones included.
        positions: (3, N), positions of the prompt up to the end of its last picture; N is 0 where
            a row's only position is its index.
        shift: Offset of the positions of all later tokens from their indices.
    """

    ahead: Sequence[Picture]
    positions: IntArray
    shift: int


class PicturePlaces:
    """Places of pictures in the prompts of live requests, by their rows of the token table."""

    def __init__(self) -> None:
        self._places: dict[int, Places] = {}

    def set(self, row: int, pictures: Sequence[Picture]) -> None:
        """Set the pictures of a row's new request; there may be none."""
        self._places.pop(row, None)
        ahead = [picture for picture in pictures if picture.sees_ahead]
        positions = grid_positions(pictures)
        if ahead or positions.size:
            end = positions.shape[1]
            shift = int(positions.max()) + 1 - end if end else 0
            self._places[row] = Places(ahead, positions, shift)

    def fork(self, parent: int, child: int) -> None:
        """Copy a row's pictures to another row."""
        self._places.pop(child, None)
        if parent in self._places:
            self._places[child] = self._places[parent]

    def arrange(self, step: ForwardBatch, rows: IntArray, starts: IntArray) -> None:
        """Set the positions of a step's rows, and the later rows that rows of pictures see.

        Args:
            step: Arrays of the step, on the host.
            rows: (B,), rows of the table.
            starts: (B,), each request's first position in the step.
        """
        if not self._places:
            return
        known = {i: self._places[row] for i, row in enumerate(rows.tolist()) if row in self._places}
        if any(places.positions.size for places in known.values()):
            step.positions = np.tile(step.positions, (_AXES, 1))
        for i, places in known.items():
            start = int(starts[i])
            if places.positions.size:
                _turn(step, i, start, places)
            for picture in places.ahead:
                _see(step, i, start, picture)


def grid_positions(pictures: Sequence[Picture]) -> IntArray:
    """Return the positions of a prompt up to the end of its last picture that has a grid.

    Source: Wang et al. 2024 (Qwen2-VL, M-RoPE).
    """
    parts: list[IntArray] = [np.empty((_AXES, 0), np.int32)]
    place = position = 0
    for picture in pictures:
        if picture.grid is None:
            continue
        text = np.arange(position, position + picture.start - place, dtype=np.int32)
        parts.append(np.tile(text, (_AXES, 1)))
        position += len(text)
        grid = np.indices((1, *picture.grid), np.int32).reshape(_AXES, -1)
        parts.append(grid + np.int32(position))
        position += max(picture.grid)
        place = picture.start + picture.num_tokens
    return np.concatenate(parts, axis=1)


def _turn(step: ForwardBatch, i: int, start: int, places: Places) -> None:
    first, end = int(step.query_start_loc[i]), int(step.query_start_loc[i + 1])
    known = places.positions[:, start : start + end - first]
    step.positions[:, first : first + known.shape[1]] = known
    step.positions[:, first + known.shape[1] : end] += places.shift


def _see(step: ForwardBatch, i: int, start: int, picture: Picture) -> None:
    stop = picture.start + picture.num_tokens
    first, end = max(picture.start, start), min(stop, int(step.seq_lens[i]))
    if first >= end:
        return
    assert end == stop, f"a step ends at {end}, within a picture that ends at {stop}"
    if step.last_seen is None:
        counts = np.diff(step.query_start_loc)
        firsts = step.seq_lens - counts - step.query_start_loc[:-1]
        step.last_seen = np.arange(len(step.input_ids), dtype=np.int32) + firsts.repeat(counts)
    at = int(step.query_start_loc[i]) - start
    step.last_seen[at + first : at + end] = stop - 1
