"""Rate of lookups that find something to propose: a text that does not repeat has nothing.

Rows that are not found are not computed, and bring nothing; what was asked for counts by this rate.
"""

from __future__ import annotations

#: What a round is worth after another one.
DECAY = 0.9
#: Rounds that what was known before is worth.
KNOWN_ROUNDS = 3.0


class LookupHitRate:
    """Follows the rate from round to round.

    Args:
        known: Another rate, at which this one begins; None begins at 1.
    """

    def __init__(self, known: LookupHitRate | None = None) -> None:
        self._known = known
        self._found = self._rounds = 0.0

    @property
    def value(self) -> float:
        """The rate, between 0 and 1."""
        known = 1.0 if self._known is None else self._known.value
        return (self._found + KNOWN_ROUNDS * known) / (self._rounds + KNOWN_ROUNDS)

    def observe(self, part: float) -> None:
        """Count a round that found this part, 0 to 1, of the tokens that it was asked for."""
        self._found = DECAY * self._found + part
        self._rounds = DECAY * self._rounds + 1.0
