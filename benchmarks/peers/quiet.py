"""Whether the machine was quiet while something was measured: others' CPU time, and a canary."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

#: Others may take this share of the machine, and the canary this much longer than its best.
MAX_FOREIGN = 0.08
MAX_CANARY = 1.25
#: OpenMP's threads spin for a while after their last work; the canary shall not meet them.
REST_SECONDS = 0.25
TICK = os.sysconf("SC_CLK_TCK")
#: Fields of /proc/stat's first line in which no program ran: idle and iowait.
IDLE = (3, 4)


def _machine_busy() -> float:
    """Return the CPU seconds that all programs and the hypervisor took since the start."""
    numbers = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(ticks for i, ticks in enumerate(numbers) if i not in IDLE) / TICK


def _process_busy(pid: int) -> float:
    """Return the CPU seconds of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(fields[i]) for i in (11, 12, 13, 14)) / TICK


def canary() -> float:
    """Return the seconds of a small fixed computation, the best of many runs."""
    best = 1e9
    for _ in range(40):
        start = time.perf_counter()
        sum(i * i for i in range(20_000))
        best = min(best, time.perf_counter() - start)
    return best


@dataclass(frozen=True)
class Verdict:
    """``foreign``: share of the machine that others took. ``canary``: time relative to its best."""

    foreign: float
    canary: float

    @property
    def is_quiet(self) -> bool:
        return self.foreign <= MAX_FOREIGN and self.canary <= MAX_CANARY


@dataclass
class Watch:
    """Judges the time between :meth:`begin` and :meth:`end`.

    Args:
        pids: The processes measured; their CPU time is no one else's. This process's is known.
    """

    pids: list[int]
    best: float = field(default_factory=canary)
    _marks: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def _read(self) -> tuple[float, float, float]:
        own = sum(_process_busy(pid) for pid in [os.getpid(), *self.pids])
        return time.perf_counter(), _machine_busy(), own

    def begin(self) -> None:
        self._marks = self._read()

    def end(self) -> Verdict:
        then, now = self._marks, self._read()
        seconds, busy, own = (b - a for a, b in zip(then, now, strict=True))
        foreign = max(0.0, busy - own) / (seconds * (os.cpu_count() or 1))
        time.sleep(REST_SECONDS)
        took = canary()
        self.best = min(self.best, took)
        return Verdict(foreign, took / self.best)
