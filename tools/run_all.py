"""Circle 3: everything, by hand before a release. ``scripts/test --all`` runs it.

Each part runs whatever became of the others. What came of them is in
``benchmarks/results/all_tests.json``, with the commit and the seed of hypothesis' examples. Parts
that have passed on this code, and on the tests that they run, are not run again: three hours need
not come in one piece, and a mended test does not undo an hour of fuzz.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from benchmarks import results
from tools.passed import changed

NAME = "all_tests"
#: How often a fault strikes that strikes again and again.
FAULT_TIMES = "50"
#: What is measured and written down about a part is no part of what it runs on.
WRITTEN = (":!*.md", ":!benchmarks/results", ":!tests/durations.json", ":!tools/passed.json")
#: What each part runs on; and helpers of all tests, next to the folders of tests that it runs and
#: that those import.
CODE, HELPERS = (".", ":!tests"), ":(glob)tests/*.py"
_ROOMS = ("distributed", "kernels", "models", "native", "quantization", "speculative")
RAY = ("tests/ray", "tests/robustness")
KERNELS = tuple(f"tests/{room}" for room in _ROOMS)

#: Held while the result file is read or written: a reader would meet a half of it.
_file = threading.RLock()


@dataclass(frozen=True)
class Part:
    """A part of the circle: a command.

    Attributes:
        name: What the result file calls it.
        command: What runs, with its arguments.
        tests: Folders of tests that it runs.
        waits: Whether it waits for servers most of its time, and runs next to the parts after it.
        measures: Whether it measures, so that parts that wait end first.
    """

    name: str
    command: tuple[str, ...]
    tests: tuple[str, ...] = ("tests",)
    waits: bool = False
    measures: bool = False


def list_parts(seed: int) -> list[Part]:
    """Return the parts in their order."""
    faults = ("--fault-times", FAULT_TIMES, "--timeout=1800")
    shown = ("--verbosity=0", "--durations=40", "--workers", "auto")
    return [
        Part("programs", ("scripts/install_test_programs",), tests=()),
        Part("tests", ("scripts/test", *shown, "--all", *faults, f"--hypothesis-seed={seed}")),
        Part("Ray", ("scripts/test_ray", "--all", *faults), tests=RAY, waits=True),
        Part("sanitizers and fuzz", ("scripts/check_native", "--long"), tests=KERNELS),
        Part("clients", ("scripts/test_clients",), tests=("tests/clients",)),
        Part("ARM", ("scripts/check_arm", "--all"), tests=KERNELS),
        Part("mutants", ("scripts/mutants", "--all")),
        Part("soak", ("scripts/soak",), tests=(), measures=True),
    ]


def run(parts: Iterable[Part], seed: int) -> None:
    """Run parts that have not passed on this code, and write down what came of each."""
    waiting: list[Future[None]] = []
    with ThreadPoolExecutor() as threads:
        for part in parts:
            if _has_passed(part):
                print(f"== {part.name}: has passed on this code", flush=True)
            elif part.waits:
                waiting.append(threads.submit(_run, part, seed))
            else:
                if part.measures:
                    wait(waiting)
                _run(part, seed)


def _run(part: Part, seed: int) -> None:
    """Run a part, its output passed on; write down its exit code, seconds and last line."""
    print(f"\n== {part.name}: {' '.join(part.command)}", flush=True)
    begun, last = time.time(), ""
    environment = {**os.environ, "QUIRE_REQUIRE_ALL": "1"}
    with subprocess.Popen(
        part.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"{part.name}: {line}" if part.waits else line, end="", flush=True)
            last = line.strip() or last
    span = {"begun": round(begun), "ended": round(time.time())}
    code = process.returncode
    # What a signal ended as a shell has it: a number below zero would be at most the 0 wanted.
    found = {"exit_code": code if code >= 0 else 128 - code, "last_line": last, **span}
    with _file:
        spans = [(each["begun"], each["ended"]) for each in (*_found().values(), found)]
        results.merge(
            NAME, {"parts": {part.name: found}}, run={"seed": seed}, seconds=covered(spans)
        )


def _document() -> dict[str, Any]:
    path = results.RESULTS / f"{NAME}.json"
    with _file:
        return json.loads(path.read_text()) if path.exists() else {"runs": {}, "results": {}}


def _found() -> dict[str, dict[str, Any]]:
    """Return what came of each part that has run."""
    return _document()["results"].get("parts", {})


def _has_passed(part: Part) -> bool:
    """Return whether a part has passed on the code that is there now."""
    found = _found().get(part.name)
    if found is None or found["exit_code"]:
        return False
    commit = _document()["runs"][found["run"]]["commit"]
    paths = ((*CODE, *WRITTEN), (HELPERS, *part.tests, *WRITTEN))
    return not any(changed(each, commit) for each in paths)


def covered(spans: Iterable[tuple[int, int]]) -> int:
    """Return how many seconds are in at least one of some spans of time."""
    total, until = 0, 0
    for begun, ended in sorted(spans):
        total += max(0, ended - max(begun, until))
        until = max(until, ended)
    return total


def main() -> int:
    """Run all parts; return 1 if one failed."""
    seed = random.SystemRandom().randrange(2**32)
    run(list_parts(seed), seed)
    for name, part in _found().items():
        seconds = part["ended"] - part["begun"]
        print(f"{name:<22}{seconds:>6} s  exit {part['exit_code']}  {part['last_line']}")
    print(f"hypothesis seed {seed}")
    return int(any(part["exit_code"] for part in _found().values()))


if __name__ == "__main__":
    sys.exit(main())
