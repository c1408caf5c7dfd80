"""Lengths of outputs, estimated from those that have ended; it knows no blocks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, deque

#: Endings that are remembered.
WINDOW = 256
#: How long an output is thought to get, at least, where none of its length has been seen. A limit
#: above it is seldom a wish: clients that name none get the rest of the context.
UNSEEN = 1024


class OutputLengths:
    """Estimates how many tokens sequences will still generate.

    Outputs that stopped by themselves show how long outputs are; those that were cut (by their
    limit, by their client) show only that they were at least as long. The product-limit estimate
    (Kaplan and Meier 1958) counts both right. Before anything has been seen, and beyond the longest
    output seen, a sequence is expected to grow by as much again, at least by :data:`UNSEEN` tokens.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[int, bool]] = deque(maxlen=WINDOW)
        # Lengths at which outputs stopped, and the part that has stopped by then.
        self._lengths: list[int] = []
        self._stopped: list[float] = []
        self._longest = UNSEEN
        self._is_current = True

    def observe(self, length: int, stopped: bool) -> None:
        """An output has ended after ``length`` tokens; ``stopped``: by itself."""
        self._seen.append((length, stopped))
        self._is_current = False

    def rest(self, num_output_tokens: int, limit: int, part: float) -> int:
        """Return within how many further tokens a part of the sequences like this one ends.

        Args:
            num_output_tokens: Tokens generated so far.
            limit: Number of tokens that may follow, at most; at least 1.
            part: The part of the sequences, 0 to 1; 1 returns ``limit``.
        """
        if part >= 1:
            return limit
        if not self._is_current:
            self._estimate()
        index = bisect_right(self._lengths, num_output_tokens) - 1
        stopped = self._stopped[index] if index >= 0 else 0.0
        index = bisect_left(self._stopped, stopped + part * (1 - stopped), index + 1)
        if index == len(self._lengths):
            return min(max(self._longest, num_output_tokens), limit)
        return min(self._lengths[index] - num_output_tokens, limit)

    def _estimate(self) -> None:
        stops = Counter(length for length, stopped in self._seen if stopped)
        ordered = sorted(length for length, _ in self._seen)
        self._lengths, self._stopped = sorted(stops), []
        self._longest = max(ordered[-1], UNSEEN)
        going_on = 1.0
        for length in self._lengths:
            # One more than were seen goes on: the longest output seen is not the longest there is.
            num_left = len(ordered) - bisect_left(ordered, length) + 1
            going_on *= 1 - stops[length] / num_left
            self._stopped.append(1 - going_on)
        self._is_current = True
