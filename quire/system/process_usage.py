"""Memory and CPU time that this process and the machine use now; Linux's ``/proc``."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from quire.core.metrics import Samples
from quire.system.background_stream import num_dropped_lines

#: The machine's load is measured over at least so long.
MIN_SECONDS = 1.0


def resident_bytes() -> int:
    """Return this process's resident memory; where ``/proc`` is missing, its peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(process_id: int | None) -> float:
    """Return the CPU time of another process; 0.0 when it is gone, or without ``/proc``."""
    try:
        text = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return 0.0
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def process_samples(name: str) -> Samples:
    """Return this process's usage by metric stem, labelled ``process="name"``."""
    return {
        f'process_memory_bytes{{process="{name}"}}': resident_bytes(),
        f'process_cpu_seconds{{process="{name}"}}': time.process_time(),
        f'log_lines_dropped{{process="{name}"}}': num_dropped_lines(),
    }


class HostLoad:
    """The busy part of the machine's cores between two looks, 0 to 1.

    Args:
        path: The file of the kernel's counters.
    """

    def __init__(self, path: Path = Path("/proc/stat")) -> None:
        self._path = path
        self._before = self._read()
        self._time = time.monotonic()
        self._value = 0.0

    def value(self) -> float:
        """Return the load since the look before; two close looks give the same."""
        now = time.monotonic()
        if now - self._time < MIN_SECONDS:
            return self._value
        busy, total = self._read()
        passed = total - self._before[1]
        if passed > 0:
            self._value = (busy - self._before[0]) / passed
        self._before, self._time = (busy, total), now
        return self._value

    def _read(self) -> tuple[int, int]:
        try:
            line = self._path.read_text().split("\n", 1)[0]
        except OSError:
            return 0, 0
        # user nice system idle iowait irq softirq steal; what guests take is part of user.
        ticks = [int(word) for word in line.split()[1:9]]
        return sum(ticks) - sum(ticks[3:5]), sum(ticks)
