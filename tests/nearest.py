"""Circle 0: the test files nearest to what changed, as many as two minutes hold.

``python -m tests.nearest FILE...`` prints them; what is left for ``make test`` it counts on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from quire.core.machine import read_machine
from tests.durations import read_durations
from tools.rooms import reached

#: Wall seconds that a worker may take, its start apart.
MAX_SECONDS = 90.0
#: Of a file that no run has timed yet.
NEW_FILE_SECONDS = 2.0


def nearest(changed: Iterable[str], seconds: dict[str, float], budget: float) -> list[str]:
    """Return the files to run, the nearest first, and of those the first even if it takes longer.

    Args:
        changed: Paths below the root of the tree.
        seconds: What each file took last.
        budget: Seconds for all of them.
    """
    chosen: list[str] = []
    for path in reached(changed):
        budget -= seconds.get(path, NEW_FILE_SECONDS)
        if budget < 0 and chosen:
            break
        chosen.append(path)
    return chosen


def main() -> None:
    """Print the files for this machine."""
    everything = reached(sys.argv[1:])
    budget = MAX_SECONDS * max(1, min(read_machine().num_cores, 8))
    chosen = nearest(sys.argv[1:], read_durations(), budget)
    if left := len(everything) - len(chosen):
        print(f"{left} files of tests farther away are left to make test", file=sys.stderr)
    print("\n".join(chosen))


if __name__ == "__main__":
    main()
