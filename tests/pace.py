"""How fast this machine is now: CPU seconds of a fixed piece of work, done again and again.

Processors differ by a third, and one whose other cores, caches or neighbours are busy takes more
CPU seconds for the same. So what a run may take is measured by what this takes meanwhile.
"""

from __future__ import annotations

import functools
import json
import time
from pathlib import Path

#: The median in a run that takes just what ``tests/budget.toml`` says.
USUAL = 0.0116
#: How long a process is left alone between two samples.
EVERY = 15.0

_SOURCE = Path(functools.__file__).read_text(encoding="utf-8")
_ROWS = json.dumps([{"id": n, "text": f"word {n}", "logprobs": [n / 7] * 4} for n in range(500)])


def sample() -> float:
    """Return the CPU seconds of the work: a module is compiled, rows are read and written."""
    begun = time.thread_time()
    compile(_SOURCE, "functools.py", "exec", dont_inherit=True)
    rows = {row["text"]: row for row in json.loads(_ROWS)}
    json.dumps([rows[text] for text in sorted(rows, key=lambda text: sum(rows[text]["logprobs"]))])
    return time.thread_time() - begun


class Sampler:
    """Takes a sample when the last one is :data:`EVERY` seconds old."""

    def __init__(self) -> None:
        self._next = 0.0

    def take(self) -> float | None:
        """Return a sample if it is time for one."""
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + EVERY
        return sample()
