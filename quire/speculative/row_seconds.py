"""What a step takes by the number of its rows, measured at start and corrected by every step.

Rows are what speculation buys: with few of them a step reads all weights for each, with many it
computes. In between lies what no formula knows, so it is measured. Contexts that grow, and
neighbours that come, add the same to steps of any size: that part is followed quickly, the shape
slowly (least mean squares, Widrow and Hoff 1960).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping

#: Part of what a prediction missed that is put down to the moment, and to that number of rows.
MOMENT, SHAPE = 0.2, 0.05
#: A step counts as at most that much longer or shorter than predicted; something else is to blame.
MOST_MISSED = 0.5
#: Where a single number of rows is known, each further row is thought to add that part of a step.
GUESSED_SLOPE = 0.1


class RowSeconds:
    """Predicts seconds of a step.

    Args:
        measured: Seconds by number of rows, to begin with; may be empty.
    """

    def __init__(self, measured: Mapping[int, float]) -> None:
        self._seconds = dict(measured)
        self._known = sorted(measured)
        self._moment = 0.0

    @property
    def is_known(self) -> bool:
        """Whether there is anything to predict by."""
        return bool(self._known)

    def predict(self, num_rows: int) -> float:
        """Return the seconds of a step of ``num_rows``, at least 1; 0.0 when nothing is known."""
        if not self._known:
            return 0.0
        shape = self._shape(num_rows)
        return max(shape + self._moment, 0.1 * shape)

    def observe(self, num_rows: int, seconds: float) -> None:
        """A step of nothing but decoding sequences has ended."""
        if not self._known:
            self._learn(num_rows, seconds)
            return
        shape = self._shape(num_rows)
        predicted = max(shape + self._moment, 0.1 * shape)
        most = MOST_MISSED * predicted
        missed = min(max(seconds - predicted, -most), most)
        self._moment += MOMENT * missed
        self._learn(num_rows, shape + SHAPE * missed)

    def _learn(self, num_rows: int, seconds: float) -> None:
        if num_rows not in self._seconds:
            insort(self._known, num_rows)
        self._seconds[num_rows] = seconds

    def _shape(self, num_rows: int) -> float:
        """Return the seconds without the moment's part: measured, or on a line between others."""
        found = self._seconds.get(num_rows)
        if found is not None:
            return found
        known, seconds = self._known, self._seconds
        if len(known) == 1:
            only = known[0]
            return seconds[only] * max(0.5, 1.0 + GUESSED_SLOPE * (num_rows - only) / only)
        at = min(max(bisect_left(known, num_rows), 1), len(known) - 1)
        low, high = known[at - 1], known[at]
        slope = (seconds[high] - seconds[low]) / (high - low)
        return max(seconds[low] + slope * (num_rows - low), 0.5 * min(seconds[low], seconds[high]))
