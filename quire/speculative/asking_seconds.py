"""What it takes to be ready for proposed tokens, found or not: slots, a lookup, what came of it.

A step in which tokens may be proposed takes longer than one of as many rows in which none may.
Where all steps are of the first kind nothing tells the two apart, so some are left without.
"""

from __future__ import annotations

from quire.speculative.row_seconds import RowSeconds

#: What a step is worth after another one.
DECAY = 0.9
#: A step counts as at most that many times what those before it took: something else is to blame.
MOST_TIMES = 2.0
#: Steps without proposals that are wanted before anything is asked.
FIRST_PLAIN = 3
#: Steps with proposals between two without, at first and at most: twice as many each time, as what
#: is known of as many sequences gets surer.
PLAIN_EVERY, LONGEST_EVERY = 64, 512


class _Mean:
    """Of the last few numbers, all positive."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    @property
    def value(self) -> float | None:
        return self._sum / self._weight if self._weight else None

    def add(self, number: float) -> None:
        if self._weight:
            number = min(number, MOST_TIMES * self._sum / self._weight)
        self._sum = DECAY * self._sum + number
        self._weight = DECAY * self._weight + 1.0


class AskingSeconds:
    """Learns it from steps of both kinds, as long as the same number of sequences decodes."""

    def __init__(self) -> None:
        self._num_decodes = 0
        self._plain, self._asked = _Mean(), _Mean()
        self._num_plain = 0
        self._num_asked = 0  # since the last plain one
        self._plain_every = PLAIN_EVERY
        self.seconds = 0.0

    @property
    def wants_plain(self) -> bool:
        """Whether the next step should be one without proposals."""
        return self._num_plain < FIRST_PLAIN or self._num_asked >= self._plain_every

    def plain(self, num_decodes: int, rows: RowSeconds) -> float:
        """Return the seconds of a step without proposals, by ``rows`` where none was seen."""
        known = self._plain.value if num_decodes == self._num_decodes else None
        return rows.predict(num_decodes) if known is None else known

    def observe(self, num_decodes: int, seconds: float, *, asked: bool) -> None:
        """A step has ended.

        Args:
            num_decodes: Sequences in it.
            seconds: It took, without drafting and without the rows of proposed tokens.
            asked: Whether tokens might be proposed.
        """
        if num_decodes != self._num_decodes:
            self._num_decodes = num_decodes
            self._plain, self._asked = _Mean(), _Mean()
            self._plain_every = PLAIN_EVERY
        if asked:
            self._num_asked += 1
            self._asked.add(seconds)
        else:
            if self._num_asked >= self._plain_every:
                self._plain_every = min(2 * self._plain_every, LONGEST_EVERY)
            self._num_plain += 1
            self._num_asked = 0
            self._plain.add(seconds)
        plain, with_asking = self._plain.value, self._asked.value
        if plain is not None and with_asking is not None:
            self.seconds = max(with_asking - plain, 0.0)
