"""Circle 3: everything, by hand before a release. ``scripts/test --all`` runs it.

Each part runs whatever became of the others. What came of them is in
``benchmarks/results/all_tests.json``, with the seed of hypothesis' examples and the commit.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from typing import Any

from benchmarks import results
from quire.core.machine import read_machine

#: How often a fault strikes that strikes again and again.
FAULT_TIMES = "50"


def _parts(seed: int) -> dict[str, list[str]]:
    machine = read_machine()
    workers = max(1, min(machine.num_cores, machine.free_bytes >> 31, 8))
    every = ["--all", "--fault-times", FAULT_TIMES, f"--hypothesis-seed={seed}", "--timeout=1800"]
    spread = ["--workers", str(workers)]
    return {
        "programs": ["scripts/install_test_programs"],
        "tests": ["scripts/test", "--verbosity=0", "--durations=40", *every, *spread],
        "sanitizers and fuzz": ["scripts/check_native", "--long"],
        "clients": ["scripts/test_clients"],
        "ARM": ["scripts/check_arm", "--all"],
        "Ray": ["scripts/test_ray", "--fault-times", FAULT_TIMES],
        "mutants": ["scripts/mutants", "--all"],
        "soak": ["scripts/soak"],
    }


def _run(command: list[str]) -> dict[str, Any]:
    """Run a part, its output passed on; return its exit code, seconds and last line."""
    begun, last = time.monotonic(), ""
    environment = {**os.environ, "QUIRE_REQUIRE_ALL": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    seconds = round(time.monotonic() - begun)
    return {"exit_code": process.returncode, "seconds": seconds, "last_line": last}


def main() -> int:
    """Run all parts; return 1 if one failed."""
    seed = random.SystemRandom().randrange(2**32)
    found: dict[str, dict[str, Any]] = {}
    for name, command in _parts(seed).items():
        print(f"\n== {name}: {' '.join(command)}", flush=True)
        found[name] = _run(command)
    results.write("all_tests", found, seed=seed)
    for name, part in found.items():
        print(f"{name:<22}{part['seconds']:>6} s  exit {part['exit_code']}  {part['last_line']}")
    print(f"hypothesis seed {seed}")
    return int(any(part["exit_code"] for part in found.values()))


if __name__ == "__main__":
    sys.exit(main())
