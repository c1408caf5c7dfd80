"""Memory limits read from files as Linux writes them."""

from __future__ import annotations

from pathlib import Path

from quire.core.machine import read_machine

MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\n"
KIB = 1024


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_without_control_groups_the_host_decides(tmp_path: Path) -> None:
    write(tmp_path, {"proc/meminfo": MEMINFO})
    machine = read_machine(tmp_path)
    assert (machine.total_bytes, machine.free_bytes) == (1000 * KIB, 600 * KIB)
    assert machine.num_cores >= 1


def test_the_tightest_group_decides_and_its_caches_are_free(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/user/app\n",
            "sys/fs/cgroup/user/app/memory.max": "max\n",
            "sys/fs/cgroup/user/app/memory.current": "1\n",
            "sys/fs/cgroup/user/memory.max": f"{400 * KIB}\n",
            "sys/fs/cgroup/user/memory.current": f"{300 * KIB}\n",
            "sys/fs/cgroup/user/memory.stat": f"anon 5\ninactive_file {50 * KIB}\n",
        },
    )
    machine = read_machine(tmp_path)
    assert (machine.total_bytes, machine.free_bytes) == (400 * KIB, 150 * KIB)


def test_version_1_groups(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{500 * KIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{480 * KIB}\n",
        },
    )
    machine = read_machine(tmp_path)
    assert (machine.total_bytes, machine.free_bytes) == (500 * KIB, 20 * KIB)


def test_this_machine_has_memory() -> None:
    machine = read_machine()
    assert 0 < machine.free_bytes <= machine.total_bytes
