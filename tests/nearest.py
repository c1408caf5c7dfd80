"""Circle 0: the test files nearest to what changed, as many as two minutes hold.

``python -m tests.nearest [COMMIT]`` prints them, and on stderr how many are left for ``make test``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from quire.system.machine import read_machine
from tests.durations import read_durations
from tools.rooms import changed_since, reached

#: Wall seconds that a worker may take, its start apart.
MAX_SECONDS = 80.0
#: Of a file that no run has timed yet.
NEW_FILE_SECONDS = 2.0
#: They look at every file, in seconds.
HOUSE_RULES = "tests/architecture"


def nearest(files: Iterable[str], seconds: Mapping[str, float], budget: float) -> list[str]:
    """Return the first of some files that fit in a budget, and the first even if it does not.

    Args:
        files: Paths, the nearest first.
        seconds: What each took last.
        budget: Seconds for all of them.
    """
    chosen: list[str] = []
    for path in files:
        budget -= seconds.get(path, NEW_FILE_SECONDS)
        if budget < 0 and chosen:
            break
        chosen.append(path)
    return chosen


def main() -> None:
    """Print the files for this machine."""
    changed = changed_since(*sys.argv[1:] or ["HEAD"])
    if not changed:
        return
    files = [*reached(changed)]
    workers = max(1, min(read_machine().num_cores, 8))
    chosen = nearest(files, read_durations(), MAX_SECONDS * workers)
    if left := len(files) - len(chosen):
        print(f"{left} files of tests farther away are left to make test", file=sys.stderr)
    print(*chosen, HOUSE_RULES, sep="\n")


if __name__ == "__main__":
    main()
