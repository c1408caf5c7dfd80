"""Limits of memory and cores, read from files as Linux writes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quire.system.control_groups import cpu_quota
from quire.system.machine import num_cores, read_machine

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


def test_version_1_groups_of_ancestors(tmp_path: Path) -> None:
    """The memory group that is not the root was never looked at."""
    write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "5:memory:/service/one\n1:cpu,cpuacct:/service\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "0\n",
            "sys/fs/cgroup/memory/service/memory.limit_in_bytes": f"{300 * KIB}\n",
            "sys/fs/cgroup/memory/service/memory.usage_in_bytes": f"{100 * KIB}\n",
        },
    )
    machine = read_machine(tmp_path)
    assert (machine.total_bytes, machine.free_bytes) == (300 * KIB, 200 * KIB)


def siblings(pairs: dict[int, str], name: str = "core_cpus_list") -> dict[str, str]:
    return {f"sys/devices/system/cpu/cpu{n}/topology/{name}": f"{s}\n" for n, s in pairs.items()}


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_threads_of_a_core_count_once(tmp_path: Path, name: str) -> None:
    write(tmp_path, siblings({0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7"}, name))
    write(tmp_path, siblings({4: "0,4", 5: "1,5", 6: "2,6", 7: "3,7"}, name))
    assert num_cores(tmp_path, range(8)) == 4
    assert num_cores(tmp_path, [1, 5]) == 1
    assert num_cores(tmp_path, [1, 2, 5]) == 2
    # Without topology, as in some sandboxes, every processor is a core.
    assert num_cores(tmp_path / "none", range(8)) == 8


@pytest.mark.parametrize(
    ("text", "quota", "cores"),
    [
        ("max 100000", None, 4),
        ("50000 100000", 0.5, 1),
        ("100000 100000", 1.0, 1),
        ("150000 100000", 1.5, 2),
        ("900000 100000", 9.0, 4),
    ],
)
def test_a_quota_counts_as_cores(
    tmp_path: Path, text: str, quota: float | None, cores: int
) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": text})
    assert cpu_quota(tmp_path) == quota
    assert num_cores(tmp_path, range(4)) == cores


@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct"])
def test_quotas_of_version_1(tmp_path: Path, controllers: str) -> None:
    group = tmp_path / "sys/fs/cgroup/cpu/box"
    write(tmp_path, {"proc/self/cgroup": f"3:{controllers}:/box\n1:cpuset:/\n"})
    write(group, {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"})
    assert cpu_quota(tmp_path) is None
    write(group, {"cpu.cfs_quota_us": "250000"})
    assert cpu_quota(tmp_path) == 2.5 and num_cores(tmp_path, range(8)) == 3


QUOTA_GROUP = Path("/sys/fs/cgroup/cpu")


@pytest.mark.skipif(
    not os.access(QUOTA_GROUP / "cgroup.procs", os.W_OK), reason="needs to make control groups"
)
def test_a_real_quota_decides_the_threads() -> None:
    group = QUOTA_GROUP / f"quire-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_quota_us").write_text("50000")
        code = (
            f"import os; open('{group}/cgroup.procs', 'w').write(str(os.getpid()))\n"
            "from quire.system.machine import read_machine; print(read_machine().num_cores)"
        )
        environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment
        )
        assert done.stdout.strip() == "1", done.stderr
    finally:
        group.rmdir()
