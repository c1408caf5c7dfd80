"""Acceptance rates of a tree's tokens by their place in it, the likeliest first.

Tokens of a chain hold only after all before them; of a tree most are off the path that holds.
What a further token is expected to bring is therefore how often the one at its place held.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.step import SequenceResult
from quire.speculative.pace.acceptance import (
    FIRST_GUESS,
    GUESS_TRIES,
    LEAST,
    METHOD_DECAY,
    MOST,
    REQUEST_DECAY,
    REQUEST_TRIES,
    MethodAcceptance,
    RequestAcceptance,
)


class TreeAcceptance(MethodAcceptance):
    """One method's rounds; positions of its counters are levels of the trees."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: list[float] = []
        self._right: list[float] = []

    def observe(self, result: SequenceResult) -> None:
        """Count a round in which tokens were proposed."""
        super().observe(result)
        if result.accepted_nodes is None:
            return  # a chain, for a request that cannot have a tree
        while len(self._shown) < result.num_proposed:
            self._shown.append(0.0)
            self._right.append(0.0)
        for place in range(result.num_proposed):
            self._shown[place] = METHOD_DECAY * self._shown[place] + 1.0
            self._right[place] *= METHOD_DECAY
        for place in result.accepted_nodes:
            self._right[place] += 1.0

    def expected(self, num_positions: int) -> list[float]:
        """Return for each place how often its token holds, never rising."""
        found, before = [], 1.0
        for place in range(num_positions):
            guess = FIRST_GUESS ** (1 + place / 2)
            if place < len(self._shown):
                right = self._right[place] + GUESS_TRIES * guess
                guess = right / (self._shown[place] + GUESS_TRIES)
            before = min(before, guess)
            found.append(before)
        return found

    def of_request(self) -> TreeRequestAcceptance:
        """Return what is kept of a request's rounds."""
        return TreeRequestAcceptance()


class TreeRequestAcceptance(RequestAcceptance):
    """One request's rounds lately."""

    def _count(self, result: SequenceResult, expected: Sequence[float]) -> None:
        self._expected = REQUEST_DECAY * self._expected + sum(expected[: result.num_proposed])
        self._held = REQUEST_DECAY * self._held + result.num_accepted

    def gains(self, expected: Sequence[float]) -> list[float]:
        """Return the tokens that each further place is expected to bring, never rising."""
        ratio = (self._held + REQUEST_TRIES) / (self._expected + REQUEST_TRIES)
        return [min(max(chance * ratio, LEAST), MOST) for chance in expected]
