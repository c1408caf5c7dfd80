"""The delay before a process that has ended is started again."""

from __future__ import annotations

FIRST_SECONDS = 0.5
#: For one that could not load: trying takes memory and cores, and the next try is unlikely to help.
MOST_SECONDS = 30.0
#: For one that has served: it can, whatever ended it.
MOST_SERVED_SECONDS = 5.0
#: An engine that served this long has recovered: the next restart is prompt again.
STABLE_SECONDS = 60.0


class RestartDelay:
    """A delay that doubles each time, up to a limit."""

    def __init__(self) -> None:
        self._seconds = FIRST_SECONDS

    def after(self, ran_seconds: float, *, has_served: bool) -> float:
        """Return the seconds to wait after a process that ran that long."""
        if ran_seconds > STABLE_SECONDS:
            self._seconds = FIRST_SECONDS
        limit = MOST_SERVED_SECONDS if has_served else MOST_SECONDS
        seconds = min(self._seconds, limit)
        self._seconds = min(2 * self._seconds, MOST_SECONDS)
        return seconds
