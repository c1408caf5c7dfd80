"""Limits of memory and processor time by Linux's control groups, versions 1 and 2.

Only files below a root are read; what the machine itself has is ``machine.py``'s.
"""

from __future__ import annotations

from pathlib import Path


def memory_limits(root: Path) -> list[tuple[int, int]]:
    """Return (limit, bytes in use that cannot be dropped) of each limiting group."""
    found = []
    names = ("memory.max", "memory.current", "inactive_file")
    old_names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    for folder, (limit_name, used_name, cache_key) in (
        *((folder, names) for folder in _own_groups(root, "")),
        *((folder, old_names) for folder in _own_groups(root, "memory")),
    ):
        limit, used = _read_number(folder / limit_name), _read_number(folder / used_name)
        if limit is not None and used is not None:
            found.append((limit, max(used - _read_stat(folder / "memory.stat", cache_key), 0)))
    return found


def cpu_quota(root: Path) -> float | None:
    """Return the cores' worth of time that the tightest group leaves; None without a limit."""
    quotas = []
    for folder in _own_groups(root, ""):
        words = _read(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit():
            quotas.append(int(words[0]) / int(words[1]))
    for folder in _own_groups(root, "cpu"):
        quota = _read_number(folder / "cpu.cfs_quota_us")
        period = _read_number(folder / "cpu.cfs_period_us")
        if quota and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def _own_groups(root: Path, controller: str) -> list[Path]:
    """Return the folders of the process's group and its ancestors; ``""`` is version 2.

    A process in a container sees its own group as the root of the hierarchy; outside one, the
    group's path is in /proc/self/cgroup and every ancestor may set a limit.
    """
    top = root / "sys/fs/cgroup" / controller
    path = "/"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controller in controllers.split(","):
            path = group
    own = top / path.strip("/")
    return [own, *(p for p in own.parents if p == top or top in p.parents)]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _read_number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read_stat(path: Path, key: str) -> int:
    lines = (line.split() for line in _read(path).splitlines())
    return next((int(words[1]) for words in lines if words[0] == key), 0)
