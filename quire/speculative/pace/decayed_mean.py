"""The mean of the last few numbers, and how sure it is."""

from __future__ import annotations

import math


class DecayedMean:
    """Mean of a series of numbers, the last ones weighted most; 0.0 at first.

    Args:
        decay: Factor of a number's weight for each number added after it.
    """

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._sum = self._squares = self._weight = 0.0

    @property
    def value(self) -> float:
        """The mean."""
        return self._sum / self._weight if self._weight else 0.0

    @property
    def variance(self) -> float:
        """Variance of the mean itself; infinite as long as fewer than two numbers were added."""
        if self._weight < 1.5:
            return math.inf
        spread = self._squares / self._weight - self.value**2
        return max(spread, 0.0) / (self._weight - 1.0)

    def add(self, number: float) -> None:
        """Add a number."""
        self._sum = self._decay * self._sum + number
        self._squares = self._decay * self._squares + number * number
        self._weight = self._decay * self._weight + 1.0
