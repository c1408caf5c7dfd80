"""Seconds that readiness for proposed tokens costs a step, found or not: slots and a lookup.

A step in which tokens may be proposed takes longer than one of as many rows in which none may.
Both are compared with what was predicted of their rows, so that steps of all loads count. Where all
steps are of the first kind nothing tells the two apart, so some are left without.
"""

from __future__ import annotations

import math

from quire.speculative.pace.decayed_mean import DecayedMean

#: What a step is worth after another one of its kind.
DECAY = 0.97
#: A step counts as at most that much longer or shorter than predicted; something else is to blame.
MOST_MISSED = 0.5
#: Steps without proposals that are wanted before anything is asked.
FIRST_PLAIN = 4
#: Steps with proposals between two without, at first and at most: twice as many each time, as what
#: is known gets surer.
PLAIN_EVERY, LONGEST_EVERY = 64, 512


class ProposalOverhead:
    """Learns the cost of readiness from steps of both kinds."""

    def __init__(self) -> None:
        self._plain, self._asked = DecayedMean(DECAY), DecayedMean(DECAY)
        self._num_plain = 0
        self._num_asked = 0  # since the last plain one
        self._plain_every = PLAIN_EVERY

    @property
    def seconds(self) -> float:
        """Seconds of readiness in a step, less a standard deviation, so that they are sure."""
        doubt = math.sqrt(self._asked.variance + self._plain.variance)
        return max(self._asked.value - self._plain.value - doubt, 0.0)

    @property
    def plain_missed(self) -> float:
        """Seconds of a step without proposals beyond those predicted of its rows; may be < 0."""
        return self._plain.value

    @property
    def wants_plain(self) -> bool:
        """Whether the next step should be one without proposals."""
        return self._num_plain < FIRST_PLAIN or self._num_asked >= self._plain_every

    def observe(self, seconds: float, predicted: float, *, asked: bool) -> None:
        """Learn from a step that has ended.

        Args:
            seconds: Time of the step without drafting.
            predicted: Seconds predicted of its rows, those of proposed tokens included.
            asked: Whether tokens might be proposed.
        """
        most = MOST_MISSED * predicted
        missed = min(max(seconds - predicted, -most), most)
        if asked:
            self._num_asked += 1
            self._asked.add(missed)
            return
        if self._num_asked >= self._plain_every:
            self._plain_every = min(2 * self._plain_every, LONGEST_EVERY)
        self._num_plain += 1
        self._num_asked = 0
        self._plain.add(missed)
