"""The times at which an engine's counters are read: between its steps, at a small cost."""

from __future__ import annotations

import time
from collections.abc import Callable

from quire.core.metrics import Samples

#: They are read at most this often, and whenever the engine runs out of work. That takes a time
#: that grows with the requests: it is to be a small part of all.
STATS_SECONDS, STATS_PART = 0.05, 0.01


class CounterPace:
    """Reads the counters of an engine where they are due; for the thread that makes its steps.

    Args:
        read: The function that reads them; no step may be under way.
    """

    def __init__(self, read: Callable[[], Samples]) -> None:
        self._read = read
        self._due = 0.0

    def read(self, *, idle: bool) -> Samples | None:
        """Return the counters if they are due or the engine is ``idle``, else None."""
        now = time.monotonic()
        if not idle and now < self._due:
            return None
        begun = time.thread_time()  # it costs nothing while other threads have the core
        stats = self._read()
        seconds = time.thread_time() - begun
        self._due = now + max(STATS_SECONDS, seconds / STATS_PART)
        return stats
