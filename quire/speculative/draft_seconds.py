"""What drafting takes by the length of the longest proposal, learned from steps.

The first token costs more than the others: a drafter makes up for the tokens since the last round.
So it is a line over the length; where one length alone was seen, its start is thought to be as long
as a token.
"""

from __future__ import annotations

from quire.speculative.followed_line import FollowedLine

#: How uncertain start and slope are at first, and how much they change from one round to the next,
#: in what a token of the first round took: standard deviations.
FIRST_SPREAD, CHANGE = (0.5, 0.5), (0.02, 0.02)
#: Of a round's seconds around what is predicted, as a part of them.
NOISE = 0.2
#: A round counts as at most that much longer than predicted; something else is to blame.
MOST_MISSED = 0.5


class DraftSeconds:
    """Predicts seconds of one method's drafts."""

    def __init__(self) -> None:
        self._unit = 0.0
        self._line: FollowedLine | None = None

    def predict(self, length: int) -> float:
        """Return seconds; 0.0 as long as nothing is known."""
        return 0.0 if self._line is None or not length else self._unit * self._line.at(length)

    def observe(self, length: int, seconds: float, *, is_steady: bool) -> None:
        """A round's longest proposal had ``length`` tokens, at least one.

        Args:
            length: Tokens that the drafter was asked for.
            seconds: It took for all sequences.
            is_steady: All of them drafted in the step before; else it had more to make up for, and
                says only that it does not take longer.
        """
        if self._line is None:
            self._unit = max(seconds, 1e-9) / (length + 1)
            self._line = FollowedLine(1.0, 1.0, FIRST_SPREAD, CHANGE)
            return
        predicted = self._line.at(length)
        missed = min(seconds / self._unit - predicted, MOST_MISSED * predicted)
        if is_steady or missed < 0.0:
            self._line.observe(length, missed, NOISE * predicted)
