"""Where a call's time goes: its limit, and what is left, told apart by measurements.

    seconds = limit + call + barriers + instructions + rest

- limit: max(bytes / measured bandwidth, operations / measured peak of the arithmetic).
- call: the same call on the smallest shape: Python, the binding, the entry.
- barriers: jobs the thread pool ran for it, each at the cost of one without work.
- instructions: what the same loop takes beyond that with its data in a processor cache, where the
  limit is memory; where it is arithmetic, all that is left.
- rest: what only data from memory adds beyond reading it at full speed, and threads that wait.

``of_limit`` compares like with like: the bandwidth of a virtual machine halves and doubles within
seconds, so each repeat has a limit of its own, from plain reads by the same threads just before and
just after it (:meth:`Costs.around`). ``of_limit`` is the median over repeats of limit / seconds,
``limit_seconds`` that share of the median seconds. Peaks of arithmetic, which hardly move, are the
best of many short runs at the start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Protocol, TypeVar

from benchmarks.kernels.probe import ProbedRates, measure_machine
from quire.kernels.cpu.native import native

Result = TypeVar("Result")
#: Reads of memory just before a repeat, and just after: 32 MiB each, half a millisecond.
READS = 2


class MemoryReader(Protocol):
    """Memory of far more than a last cache holds: ``native.MemoryReader``."""

    part_bytes: int

    def read(self) -> float:
        """Return the seconds that the compute threads take to read the next part."""
        ...


@dataclass(frozen=True)
class Costs:
    """What this machine reaches, and what a barrier costs on it.

    Attributes:
        speed: Peaks and bandwidth of the threads in use.
        barrier: Seconds of a job of the thread pool beyond its work.
        reader: Reads memory between repeats.
    """

    speed: ProbedRates
    barrier: float
    reader: MemoryReader

    @classmethod
    def measured(cls) -> Costs:
        """Measure for about three seconds; keeps 512 MiB to read."""
        speed = measure_machine(native.num_threads())
        return cls(speed, native.measure_barrier(), native.MemoryReader())

    @property
    def bandwidth(self) -> float:
        """Bytes read from memory per second."""
        return self.speed.read_bytes_per_second

    def around(self, work: Callable[[], Result]) -> tuple[Costs, Result]:
        """Do the work; return also what the machine reached around it.

        Its bandwidth is that of the median of reads just before and just after.
        """
        taken = [self.reader.read() for _ in range(READS)]
        result = work()
        taken += [self.reader.read() for _ in range(READS)]
        return self.at(self.reader.part_bytes / median(taken)), result

    def at(self, bandwidth: float) -> Costs:
        """Return the same with another bandwidth."""
        return replace(self, speed=replace(self.speed, read_bytes_per_second=bandwidth))

    def limit(self, nbytes: float, operations: float, peak: float) -> tuple[float, str]:
        """Return the least seconds and what binds: ``memory`` or ``arithmetic``."""
        reading, computing = nbytes / self.bandwidth, operations / peak
        return (reading, "memory") if reading >= computing else (computing, "arithmetic")


def jobs_of(call: Callable[[], object]) -> int:
    """Return how many jobs of the thread pool a call takes."""
    before = native.num_jobs()
    call()
    return int(native.num_jobs() - before)


def account(
    costs: Costs, seconds: float, limit: float, bound: str, *, call: float, jobs: int,
    in_cache: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the parts of ``seconds``, each as a share of it.

    Args:
        seconds: Of the call, the median.
        limit, bound: The share of ``seconds`` that is the limit, in seconds, and what binds.
        call: Seconds of the same call on the smallest shape.
        jobs: Of the call.
        in_cache: Seconds of the same work on data in a processor cache; None: not measured.
    """
    left = max(seconds - limit, 0.0)
    parts = {"call": min(call, left)}
    left -= parts["call"]
    parts["barriers"] = min(jobs * costs.barrier, left)
    left -= parts["barriers"]
    known = limit + parts["call"] + parts["barriers"]
    if bound == "arithmetic":
        parts["instructions"] = left
    elif in_cache is not None:
        parts["instructions"] = min(max(in_cache - known, 0.0), left)
    parts["rest"] = left - parts.get("instructions", 0.0)
    return {
        "bound": bound,
        "of_limit": round(limit / seconds, 3),
        "limit_seconds": limit,
        "jobs": jobs,
        "left": {name: round(part / seconds, 3) for name, part in parts.items()},
    }
