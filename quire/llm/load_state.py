"""The progress of a model that is being loaded, for those that wait for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

#: The answer until something is known of how long loading takes.
FIRST_RETRY_SECONDS = 2
MAX_RETRY_SECONDS = 120


@dataclass(slots=True)
class Loading:
    """The progress of loading a model; one thread writes, any reads.

    Attributes:
        clock: Monotonic clock, in seconds.
        started: Time at which loading began, on that clock.
        done_bytes, total_bytes: Bytes of weights loaded, and in all; 0 of 0 until the files are
            open.
        cancelled: Whether no request wants the model any more, so that loading is to stop.
    """

    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)
    done_bytes: int = 0
    total_bytes: int = 0
    cancelled: bool = False
    _first: tuple[float, int] | None = None  # time and bytes of the first report

    def __post_init__(self) -> None:
        self.started = self.clock()

    def begin(self) -> None:
        """Start again, from nothing."""
        self.started, self.done_bytes, self.total_bytes = self.clock(), 0, 0
        self._first = None

    def advance(self, done_bytes: int, total_bytes: int) -> None:
        """Note the progress."""
        self.done_bytes, self.total_bytes = done_bytes, total_bytes
        self._first = self._first or (self.clock(), done_bytes)

    @property
    def seconds(self) -> float:
        """Seconds since loading began."""
        return self.clock() - self.started

    @property
    def part(self) -> float:
        """Part of the weights that is loaded, 0 to 1."""
        return self.done_bytes / self.total_bytes if self.total_bytes else 0.0

    def retry_after(self) -> int:
        """Return the seconds in which loading is likely to be done, at its rate so far."""
        first, done_bytes = self._first, self.done_bytes  # another thread loads
        if first is None or done_bytes <= first[1]:
            return FIRST_RETRY_SECONDS
        seconds_per_byte = (self.clock() - first[0]) / (done_bytes - first[1])
        rest = seconds_per_byte * (self.total_bytes - done_bytes)
        return min(MAX_RETRY_SECONDS, max(1, math.ceil(rest)))
