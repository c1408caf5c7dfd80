"""The seconds of a step, by its rows and its tokens of prompts: learned from the steps before.

A step takes ``own + factor * shape(rows) + token * prompt_tokens``. All three are followed from
step to step (a Kalman filter), so the sum follows contexts that get longer and neighbours that
come, and steps of other kinds tell the parts from each other. The shape is what was measured of a
few numbers of rows: with few of them a step reads all weights for each, with many it computes, and
in between lies what no formula knows. What the sum misses corrects it too, slowly. Where nothing
was measured the shape is a line.

Each reader has times of its own: the engine counts sequences, and all that a step takes; with
speculation :class:`Controller` counts rows, and leaves out what drafting takes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from quire.planner.decayed_fit import DecayedFit

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
#: How uncertain a step's own time, the factor and a prompt token are at first, in steps of one row,
#: and how much they change from a step to the next: standard deviations.
FIRST_SPREAD, CHANGE = (1.0, 0.5, 1.0), (0.01, 0.01, 0.2)
#: The same where nothing was measured, in what a token of the first step took: a step's own time
#: has the weight of eight of them.
LINE_SPREAD, LINE_CHANGE = (8.0, 1.0, 1.0), (0.2, 0.02, 0.2)
#: Of a step's seconds around what is predicted, as a part of them.
NOISE = 0.2
#: A step that takes longer by more than that part was disturbed, as long as it is the only one; and
#: it counts as at most that much longer.
MOST_MISSED = 0.5
#: Where nothing is known but one number of rows, a row is thought to add that part of a step.
GUESSED_SLOPE = 0.1
#: The least that a prompt token is thought to take, of the mean time of a step's tokens.
LEAST_TOKEN = 0.05
#: Rows past what was measured add that times as much as the last ones measured: activations leave
#: the caches. On a Zen 5 it was 1.0 to 1.27 from 32 to 64 rows, by the type of the weights.
BEYOND = 1.2
#: No step is thought to take less of its measured seconds; and rows do not get cheaper than they
#: were, or those that are never tried would seem to be free.
LEAST_PART, LEAST_FACTOR = 0.1, 0.7


class StepTimes:
    """Predicts seconds of a step.

    Args:
        measured: Seconds of steps by number of rows; empty where none was measured.
    """

    def __init__(self, measured: Mapping[int, float] | None = None) -> None:
        self._measured = [] if not measured else _at_knots(measured)
        self._seconds = list(self._measured)
        self._unit = self._seconds[0] if self._seconds else 0.0
        self._mean = 0.0  # seconds per token of any kind in the last step
        self._was_late = False  # whether the last step took much longer than predicted
        if self._measured:
            self._fit = DecayedFit(0.0, 1.0, 1.0, FIRST_SPREAD, CHANGE, LEAST_FACTOR)
        else:
            self._fit = DecayedFit(0.0, 1.0, 1.0, LINE_SPREAD, LINE_CHANGE)

    @property
    def is_known(self) -> bool:
        """Whether there is anything to predict by."""
        return self._unit > 0.0

    def seconds(self, num_rows: float, num_prompt_tokens: int = 0) -> float:
        """Return the seconds of a step; 0.0 when nothing is known.

        Args:
            num_rows: Rows of sequences that decode. Those that are computed only sometimes count
                as the part of one that they are on average.
            num_prompt_tokens: Tokens of prompts, where they are not counted as rows.
        """
        if not self._unit:
            return 0.0
        shape = self._shape(num_rows)
        seconds = self._unit * self._fit.at(shape / self._unit, num_prompt_tokens)
        return max(seconds, LEAST_PART * shape) if self._seconds else seconds

    def observe(self, seconds: float, num_rows: int, num_prompt_tokens: int = 0) -> None:
        """Learn from a step that has ended; the arguments are those of :meth:`seconds`."""
        num_tokens = num_rows + num_prompt_tokens
        if seconds <= 0.0 or not num_tokens:
            return
        self._mean = seconds / num_tokens
        if not self._unit:
            self._unit = self._mean
            return
        predicted = max(self.seconds(num_rows, num_prompt_tokens), LEAST_PART * seconds)
        missed, most = seconds - predicted, MOST_MISSED * predicted
        is_late = missed > most
        if is_late:
            missed = most if self._was_late else 0.0
        self._was_late = is_late
        # A step that takes much less than predicted is no accident: noise only adds.
        unit, noise = self._unit, NOISE * (predicted if missed > -most else seconds)
        shape = self._shape(num_rows)
        self._fit.observe(missed / unit, noise / unit, shape / unit, num_prompt_tokens)
        if self._seconds and not num_prompt_tokens:
            self._correct_shape(num_rows, missed / predicted)

    @property
    def prompt_token_seconds(self) -> float:
        """Seconds that one prompt token adds to a step; 0.0 before the first step."""
        return max(self._unit * self._fit.rate, LEAST_TOKEN * self._mean)

    def prompt_tokens(self, seconds: float, num_rows: int) -> int:
        """Return how many tokens of prompts fit into a step of that length; may be negative."""
        return int((seconds - self.seconds(num_rows)) / self.prompt_token_seconds)

    def _shape(self, num_rows: float) -> float:
        """Return the seconds as they were measured, or on a line between two that were."""
        if not self._seconds:
            return self._unit * num_rows
        knot, part = _place(num_rows)
        return self._seconds[knot] * (1.0 - part) + self._seconds[knot + 1] * part

    def _correct_shape(self, num_rows: int, missed: float) -> None:
        knot, part = _place(num_rows)
        for at, weight in ((knot, 1.0 - part), (knot + 1, part)):
            back = RETURN * (self._measured[at] / self._seconds[at] - 1.0)
            self._seconds[at] *= 1.0 + weight * (SHAPE * missed + back)


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
