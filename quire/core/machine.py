"""What this machine gives the process: cores and memory, container limits included; Linux first."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from quire.core import env


@dataclass(frozen=True, slots=True)
class Machine:
    """Limits of this process.

    Attributes:
        num_cores: Cores it may use (``OMP_NUM_THREADS`` lowers it).
        total_bytes: Memory it may use at most.
        free_bytes: Memory that is available now; caches the system can drop count as free.
    """

    num_cores: int
    total_bytes: int
    free_bytes: int


def read_machine(root: Path = Path("/")) -> Machine:
    """Read the machine's limits below ``root`` (``proc``, ``sys/fs/cgroup``)."""
    total, free = _host_memory(root)
    for limit, used in _cgroup_memory(root):
        total = min(total, limit)
        free = min(free, max(limit - used, 0))
    return Machine(env.num_threads(), total, free)


def _host_memory(root: Path) -> tuple[int, int]:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
        return sizes["MemTotal"], sizes["MemAvailable"]
    except (OSError, KeyError):
        # Other systems tell the total only.
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return pages, pages


def _cgroup_memory(root: Path) -> list[tuple[int, int]]:
    """Return (limit, bytes in use that cannot be dropped) of each limiting control group."""
    found = []
    # A process in a container sees its own group as the root of the hierarchy; outside one, the
    # group's path is in /proc/self/cgroup and every ancestor may set a limit.
    for folder, limit_name, used_name, cache_key in (
        *((f, "memory.max", "memory.current", "inactive_file") for f in _own_groups(root)),
        (
            root / "sys/fs/cgroup/memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ):
        limit, used = _read_number(folder / limit_name), _read_number(folder / used_name)
        if limit is not None and used is not None:
            found.append((limit, max(used - _read_stat(folder / "memory.stat", cache_key), 0)))
    return found


def _own_groups(root: Path) -> list[Path]:
    top = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return [top]
    path = next((line[3:] for line in lines if line.startswith("0::")), "/")
    own = top / path.strip("/")
    return [own, *(p for p in own.parents if p == top or top in p.parents)]


def _read_number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _read_stat(path: Path, key: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == key), 0)
