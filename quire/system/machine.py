"""Cores and memory that the process may use, container limits included; Linux first."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from quire.system import control_groups, env


@dataclass(frozen=True, slots=True)
class Machine:
    """Limits of this process.

    Attributes:
        num_cores: Cores worth a compute thread each (``OMP_NUM_THREADS`` lowers it).
        total_bytes: Memory it may use at most.
        free_bytes: Memory that is available now; caches the system can drop count as free.
    """

    num_cores: int
    total_bytes: int
    free_bytes: int


def read_machine(root: Path = Path("/")) -> Machine:
    """Read the machine's limits below ``root`` (``proc``, ``sys``)."""
    total, free = _host_memory(root)
    for limit, used in control_groups.memory_limits(root):
        total = min(total, limit)
        free = min(free, max(limit - used, 0))
    return Machine(_num_threads(root), total, free)


def num_cores(root: Path, allowed: Iterable[int]) -> int:
    """Return how many compute threads are worth having on the processors ``allowed``.

    Threads of one core share its vector units, so each core counts once. A quota of the control
    group counts as cores, rounded up: more threads would use it up sooner and then all be stopped
    for the rest of the period.
    """
    cores = {_siblings(root, processor) for processor in allowed}
    quota = control_groups.cpu_quota(root)
    return max(1, len(cores) if quota is None else min(len(cores), math.ceil(quota)))


def _siblings(root: Path, processor: int) -> str:
    """Return the list of a core's threads, which is the same for each of them."""
    topology = root / f"sys/devices/system/cpu/cpu{processor}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):
        try:
            return (topology / name).read_text().strip()
        except OSError:
            continue
    return str(processor)


def _num_threads(root: Path) -> int:
    if hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
    else:
        allowed = set(range(os.cpu_count() or 1))
    limit = env.omp_num_threads()
    return num_cores(root, allowed) if limit is None else min(limit, len(allowed))


def _host_memory(root: Path) -> tuple[int, int]:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
        return sizes["MemTotal"], sizes["MemAvailable"]
    except (OSError, KeyError):
        # Other systems report the total only.
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return pages, pages
