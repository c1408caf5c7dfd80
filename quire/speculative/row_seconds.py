"""What a step takes by the number of its rows, measured at start and corrected by every step.

Rows are what speculation buys: with few of them a step reads all weights for each, with many it
computes. In between lies what no formula knows, so it is measured. Contexts that grow, and
neighbours that come, make steps of any size longer: that factor is followed quickly, the shape
slowly (normalized least mean squares, Widrow and Hoff 1960). What is chosen by quotients of two
predictions does not depend on the factor.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

#: Numbers of rows whose seconds are kept; those between lie on a line.
KNOTS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096)
#: Part of what a prediction missed that is put down to the moment, and to that number of rows.
MOMENT, SHAPE = 0.2, 0.05
#: A step counts as at most that much longer or shorter than predicted; something else is to blame.
MOST_MISSED = 0.5
#: Where nothing is known but one number of rows, a row is thought to add that part of a step.
GUESSED_SLOPE = 0.1
#: Rows past what was measured add that times as much as the last ones measured: activations leave
#: the caches. On a Zen 5 it was 1.0 to 1.27 from 32 to 64 rows, by the type of the weights.
BEYOND = 1.2
#: No step is thought to take less of its measured seconds.
LEAST_PART = 0.1


class RowSeconds:
    """Predicts seconds of a step.

    Args:
        measured: Seconds by number of rows, to begin with; may be empty.
    """

    def __init__(self, measured: Mapping[int, float]) -> None:
        self._seconds = [] if not measured else _at_knots(measured)
        self._moment = 1.0

    @property
    def is_known(self) -> bool:
        """Whether there is anything to predict by."""
        return bool(self._seconds)

    def predict(self, num_rows: int) -> float:
        """Return the seconds of a step of ``num_rows``, at least 1; 0.0 when nothing is known."""
        if not self._seconds:
            return 0.0
        return self._moment * self._shape(*_place(num_rows))

    def observe(self, num_rows: int, seconds: float) -> None:
        """A step of nothing but decoding sequences has ended."""
        if not self._seconds:
            self._seconds = _at_knots({num_rows: seconds})
            return
        knot, part = _place(num_rows)
        shape = self._shape(knot, part)
        missed = seconds / (self._moment * shape) - 1.0
        missed = min(max(missed, -MOST_MISSED), MOST_MISSED)
        self._moment = max(self._moment * (1.0 + MOMENT * missed), LEAST_PART)
        for at, weight in ((knot, 1.0 - part), (knot + 1, part)):
            self._seconds[at] *= 1.0 + SHAPE * weight * missed

    def _shape(self, knot: int, part: float) -> float:
        """Return the seconds without what the moment adds."""
        return self._seconds[knot] * (1.0 - part) + self._seconds[knot + 1] * part


def _place(num_rows: int) -> tuple[int, float]:
    """Return the knot at or before a number of rows, and how far it is on the way to the next."""
    knot = min(bisect_right(KNOTS, num_rows) - 1, len(KNOTS) - 2)
    return knot, (num_rows - KNOTS[knot]) / (KNOTS[knot + 1] - KNOTS[knot])


def _at_knots(measured: Mapping[int, float]) -> list[float]:
    """Return seconds for each knot, on lines through what was measured."""
    known = sorted(measured)
    if len(known) == 1:
        only = known[0]
        seconds = measured[only]
        return [seconds * max(0.5, 1 + GUESSED_SLOPE * (knot - only) / only) for knot in KNOTS]
    found = []
    for knot in KNOTS:
        at = min(max(bisect_right(known, knot), 1), len(known) - 1)
        low, high = known[at - 1], known[at]
        slope = (measured[high] - measured[low]) / (high - low)
        if knot > high:  # two neighbours alone may be alike by chance
            slope = max(slope, (measured[high] - measured[known[0]]) / (high - known[0]))
            slope *= BEYOND
        least = LEAST_PART * measured[low]
        found.append(max(measured[low] + slope * (knot - low), least))
    return found
