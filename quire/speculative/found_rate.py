"""How often a lookup finds something to propose: a text that does not repeat has nothing.

Rows that are not found are not computed, and bring nothing; what was asked for counts by this rate.
"""

from __future__ import annotations

#: What a round is worth after another one.
DECAY = 0.9
#: Rounds that what was known before is worth.
KNOWN_ROUNDS = 3.0


class FoundRate:
    """Follows it.

    Args:
        known: Of others, where this one begins; None: as if each round found something.
    """

    def __init__(self, known: FoundRate | None = None) -> None:
        self._known = known
        self._found = self._rounds = 0.0

    @property
    def value(self) -> float:
        """Between 0 and 1."""
        known = 1.0 if self._known is None else self._known.value
        return (self._found + KNOWN_ROUNDS * known) / (self._rounds + KNOWN_ROUNDS)

    def observe(self, part: float) -> None:
        """A round has found that part of what it was asked for, 0 to 1."""
        self._found = DECAY * self._found + part
        self._rounds = DECAY * self._rounds + 1.0
