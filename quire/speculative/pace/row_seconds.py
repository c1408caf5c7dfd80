"""Seconds of a step by the number of its rows, measured at start and corrected by every step.

Rows are what speculation buys: with few of them a step reads all weights for each, with many it
computes. In between lies what no formula knows, so the shape is measured. A step of the engine
takes more than its shape: some time of its own, and longer when contexts grow or neighbours come.
So a step takes ``own + factor * shape(rows)``; both numbers are followed from step to step, and
what they leave corrects the shape, slowly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from quire.speculative.pace.decayed_line_fit import DecayedLineFit

#: Numbers of rows whose seconds are kept; those between lie on a line. The first row past a tile of
#: four, eight or twelve costs more than the others.
KNOTS = (
    1, 2, 3, 4, 5, 6, 8, 9, 12, 13, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048,
    4096,
)  # fmt: skip
#: Part of what a prediction missed that is put down to that number of rows.
SHAPE = 0.02
#: Part of the way that a number of rows goes back to what was measured with each step of it: noise,
#: and a factor that may not fall further, would move the shape for ever.
RETURN = 0.001
#: How uncertain a step's own time (in steps of one row) and the factor are at first, and how much
#: they change from a step to the next: standard deviations.
FIRST_SPREAD, CHANGE = (1.0, 0.5), (0.01, 0.01)
#: Of a step's seconds around what is predicted, as a part of them.
NOISE = 0.2
#: A step counts as at most that much longer or shorter than predicted; something else is to blame.
MOST_MISSED = 0.5
#: Where nothing is known but one number of rows, a row is thought to add that part of a step.
GUESSED_SLOPE = 0.1
#: Rows past what was measured add that times as much as the last ones measured: activations leave
#: the caches. On a Zen 5 it was 1.0 to 1.27 from 32 to 64 rows, by the type of the weights.
BEYOND = 1.2
#: No step is thought to take less of its measured seconds; and rows do not get cheaper than they
#: were, or those that are never tried would seem to be free.
LEAST_PART, LEAST_FACTOR = 0.1, 0.7


class RowSeconds:
    """Predicts seconds of a step.

    Args:
        measured: Seconds by number of rows, to begin with; may be empty.
    """

    def __init__(self, measured: Mapping[int, float]) -> None:
        self._seconds = [] if not measured else _at_knots(measured)
        self._measured = list(self._seconds)
        self._unit = self._seconds[0] if self._seconds else 0.0
        self._line = DecayedLineFit(0.0, 1.0, FIRST_SPREAD, CHANGE, LEAST_FACTOR)

    @property
    def is_known(self) -> bool:
        """Whether there is anything to predict by."""
        return bool(self._seconds)

    def predict(self, num_rows: float) -> float:
        """Return the seconds of a step of ``num_rows``, at least 1; 0.0 when nothing is known.

        Rows that are computed only sometimes count as the part of one that they are on average.
        """
        if not self._seconds:
            return 0.0
        shape = self._shape(*_place(num_rows))
        return max(self._unit * self._line.at(shape / self._unit), LEAST_PART * shape)

    def observe(self, num_rows: int, seconds: float) -> None:
        """Learn from a step of nothing but decoding sequences."""
        if not self._seconds:
            self._seconds = _at_knots({num_rows: seconds})
            self._measured = list(self._seconds)
            self._unit = self._seconds[0]
            return
        knot, part = _place(num_rows)
        shape = self._shape(knot, part)
        predicted = self.predict(num_rows)
        most = MOST_MISSED * predicted
        missed = min(max(seconds - predicted, -most), most)
        unit = self._unit
        self._line.observe(shape / unit, missed / unit, NOISE * predicted / unit)
        for at, weight in ((knot, 1.0 - part), (knot + 1, part)):
            back = RETURN * (self._measured[at] / self._seconds[at] - 1.0)
            self._seconds[at] *= 1.0 + weight * (SHAPE * missed / predicted + back)

    def _shape(self, knot: int, part: float) -> float:
        """Return the seconds as they were measured, or on a line between two that were."""
        return self._seconds[knot] * (1.0 - part) + self._seconds[knot + 1] * part


def _place(num_rows: float) -> tuple[int, float]:
    """Return the knot at or before a number of rows, and how far it is on the way to the next."""
    knot = min(bisect_right(KNOTS, num_rows) - 1, len(KNOTS) - 2)
    return knot, (num_rows - KNOTS[knot]) / (KNOTS[knot + 1] - KNOTS[knot])


def _at_knots(measured: Mapping[int, float]) -> list[float]:
    """Return seconds for each knot, on lines through what was measured."""
    known = sorted(measured)
    # Noise only adds: a step of fewer rows does not take longer.
    measured = {at: min(measured[more] for more in known if more >= at) for at in known}
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
