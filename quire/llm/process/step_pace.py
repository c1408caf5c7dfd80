"""The time that a step of an engine may take, judging by the steps before it."""

from __future__ import annotations

import time
from collections.abc import Callable

from quire.core.metrics import Samples

#: The longest step is that of this time or twice as much.
WINDOW_SECONDS = 60.0
#: The largest step may take this many times what the best rate says: long contexts are slower.
OF_BEST_RATE = 3.0
#: The next step may take this many times the longest of the last ones.
OF_LONGEST = 2.0


class StepPace:
    """Reads the pace from the counters that arrive with steps.

    Args:
        max_tokens: Most tokens of a step.
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, max_tokens: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_tokens = max_tokens
        self._clock = clock
        self._seen = (0.0, 0.0, 0.0)  # seconds, steps, tokens
        self._best: float | None = None  # seconds per token
        self._longest, self._longest_before = 0.0, 0.0
        self._window_start = clock()

    @property
    def is_known(self) -> bool:
        """Whether a step has ended."""
        return self._best is not None

    @property
    def seconds(self) -> float:
        """Seconds that a step may take; 0.0 before the first."""
        largest = OF_BEST_RATE * (self._best or 0.0) * self._max_tokens
        return max(largest, OF_LONGEST * max(self._longest, self._longest_before))

    def restart(self) -> None:
        """Take note that a new process counts from nothing."""
        self._seen = (0.0, 0.0, 0.0)

    def observe(self, stats: Samples) -> None:
        """Learn from an engine's counters."""
        seen = (_total(stats, "step_seconds"), _total(stats, "num_steps"),
                _total(stats, "num_computed_tokens"))  # fmt: skip
        seconds, steps, tokens = (new - old for new, old in zip(seen, self._seen, strict=True))
        self._seen = seen
        if steps <= 0 or tokens <= 0 or seconds <= 0:
            return
        rate = seconds / tokens
        self._best = rate if self._best is None else min(self._best, rate)
        now = self._clock()
        if now - self._window_start > WINDOW_SECONDS:
            self._longest_before, self._longest = self._longest, 0.0
            self._window_start = now
        self._longest = max(self._longest, seconds / steps)


def _total(stats: Samples, stem: str) -> float:
    """Return the sum of a counter's series."""
    values = (value for name, value in stats.items() if name.partition("{")[0] == stem)
    return float(sum(value for value in values if not isinstance(value, list)))
