"""Seconds of drafting by number of sequences and length of the longest proposal, from steps.

The first token costs more than the others: a drafter makes up for the tokens since the last round.
So the seconds are a line over the length, for each number of sequences (1, 2 to 3, 4 to 7 and so
on). A drafter's first rounds allocate, read its weights for the first time, and follow a prompt:
one of them alone kept a head from being used that makes answers 1.5 times as fast. So drafts are
thought to take a part of that until enough rounds were seen.
"""

from __future__ import annotations

from quire.planner.decayed_fit import DecayedFit

#: How uncertain start and slope are at first, and how much they change from one round to the next,
#: in what a token of the first round took: standard deviations.
FIRST_SPREAD, CHANGE = (0.5, 0.5, 0.0), (0.02, 0.02, 0.0)
#: Of a round's seconds around what is predicted, as a part of them.
NOISE = 0.2
#: A round counts as at most that much longer than predicted; something else is to blame.
MOST_MISSED = 0.5
#: A round that takes less than that part of what is predicted tells more than all before it.
LEAST_PART = 0.5
#: First rounds, of which one that is not steady counts as a part, and what their seconds count.
FIRST_ROUNDS, UNSTEADY, COLD = 8.0, 0.125, 0.25


class DraftSeconds:
    """Predicts seconds of one method's drafts."""

    def __init__(self) -> None:
        self._by_size: dict[int, _Drafts] = {}

    def predict(self, num_drafting: int, length: int) -> float:
        """Return seconds; 0.0 as long as nothing is known.

        Args:
            num_drafting: Sequences that draft.
            length: Tokens of the longest proposal; may be 0.
        """
        known = self._by_size.get(num_drafting.bit_length()) if length else None
        return 0.0 if known is None else known.part * known.seen(length)

    def seen(self, num_drafting: int, length: int) -> float:
        """Return seconds by the rounds so far, however few; 0.0 when there were none."""
        known = self._by_size.get(num_drafting.bit_length())
        return 0.0 if known is None else known.seen(length)

    def observe(self, num_drafting: int, length: int, seconds: float, *, is_steady: bool) -> None:
        """Learn from a round whose longest proposal had ``length`` tokens, at least one.

        Args:
            num_drafting: Sequences that drafted.
            length: Tokens that the drafter was asked for.
            seconds: Time of the round, for all sequences.
            is_steady: Whether all of them drafted in the step before. Otherwise the drafter had
                more to make up for, and the round says only that drafting takes no longer.
        """
        size = num_drafting.bit_length()
        if size not in self._by_size:
            self._by_size[size] = _Drafts(length, seconds)
        self._by_size[size].observe(length, seconds, is_steady)


class _Drafts:
    """Drafts of about as many sequences.

    Args:
        length, seconds: Tokens and time of the first round, whose start counts as one more token.
    """

    def __init__(self, length: int, seconds: float) -> None:
        self._begin(length, seconds)
        self._num_rounds = 0.0

    def _begin(self, length: int, seconds: float) -> None:
        self._unit = max(seconds, 1e-9) / (length + 1)
        self._line = DecayedFit(1.0, 1.0, 0.0, FIRST_SPREAD, CHANGE)

    @property
    def part(self) -> float:
        """Factor of the seconds that were seen; below 1 until enough rounds were."""
        return 1.0 if self._num_rounds >= FIRST_ROUNDS else COLD

    def seen(self, length: int) -> float:
        return self._unit * self._line.at(length)

    def observe(self, length: int, seconds: float, is_steady: bool) -> None:
        self._num_rounds += 1.0 if is_steady else UNSTEADY
        if seconds < LEAST_PART * self.seen(length):
            self._begin(length, seconds)
        predicted = self._line.at(length)
        missed = min(seconds / self._unit - predicted, MOST_MISSED * predicted)
        if is_steady or missed < 0.0:
            self._line.observe(missed, NOISE * predicted, length)
