"""Readings of a server, and the last few of them; no request is sent, no figure computed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from quire.cli.top.scrape import Scrape


@dataclass(frozen=True, slots=True)
class Reading:
    """A server's answers at one time.

    Attributes:
        seconds: Time of the reading, on a monotonic clock.
        scrape: The scrape of ``/metrics``.
        models: State by name, as ``/models`` has it.
        not_ready: The reason why ``/health/ready`` is red; None when it is green.
    """

    seconds: float
    scrape: Scrape
    models: dict[str, str]
    not_ready: str | None = None


class History:
    """The readings of the last while, oldest first; those before a restart are dropped.

    Args:
        keep_seconds: Seconds that a reading is kept.
    """

    def __init__(self, keep_seconds: float) -> None:
        self._keep_seconds = keep_seconds
        self._readings: deque[Reading] = deque()

    def add(self, reading: Reading) -> None:
        """Add the newest reading."""
        if self._readings and _began_again(self._readings[-1].scrape, reading.scrape):
            self._readings.clear()
        self._readings.append(reading)
        # The one just outside stays: what is shown covers the whole time, not a reading less.
        while len(self._readings) > 2 and self._readings[1].seconds <= self._oldest_wanted():
            self._readings.popleft()

    @property
    def readings(self) -> tuple[Reading, ...]:
        """All that are kept."""
        return tuple(self._readings)

    def last(self, seconds: float) -> tuple[Reading, ...]:
        """Return the readings that cover the last ``seconds``, at least two where there are two."""
        end = self._readings[-1].seconds
        readings = list(self._readings)
        while len(readings) > 2 and readings[1].seconds <= end - seconds:
            del readings[0]
        return tuple(readings)

    def _oldest_wanted(self) -> float:
        return self._readings[-1].seconds - self._keep_seconds


def _began_again(before: Scrape, after: Scrape) -> bool:
    """Return whether another process of the server answered: its CPU time went back."""
    stem = "process_cpu_seconds"
    old, new = before.value(stem, process="server"), after.value(stem, process="server")
    return old is not None and (new is None or new < old)
