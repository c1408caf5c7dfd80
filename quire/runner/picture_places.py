"""What a step's rows are told of the pictures in their prompts: which rows they see."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.core.request import Picture
from quire.kernels.forward_batch import ForwardBatch
from quire.kernels.token_table import IntArray


class PicturePlaces:
    """Where pictures are in the prompts of the live requests, by their rows of the token table."""

    def __init__(self) -> None:
        self._seen: dict[int, list[Picture]] = {}

    def set(self, row: int, pictures: Sequence[Picture]) -> None:
        """Take the pictures of the request that has a row now; none is no error."""
        self._seen.pop(row, None)
        ahead = [picture for picture in pictures if picture.sees_ahead]
        if ahead:
            self._seen[row] = ahead

    def arrange(self, step: ForwardBatch, rows: IntArray, starts: IntArray) -> None:
        """Say which rows see later ones.

        Args:
            step: On the host.
            rows: (B,), of the table.
            starts: (B,), each request's first position in the step.
        """
        if not self._seen:
            return
        for i, row in enumerate(rows.tolist()):
            for picture in self._seen.get(row, ()):
                self._see(step, i, int(starts[i]), picture)

    def _see(self, step: ForwardBatch, i: int, start: int, picture: Picture) -> None:
        stop = picture.start + picture.num_tokens
        first, end = max(picture.start, start), min(stop, int(step.seq_lens[i]))
        if first >= end:
            return
        assert end == stop, f"a step ends at {end}, within a picture that ends at {stop}"
        if step.last_seen is None:
            step.last_seen = step.positions.copy()
        at = int(step.query_start_loc[i]) - start
        step.last_seen[at + first : at + end] = stop - 1
