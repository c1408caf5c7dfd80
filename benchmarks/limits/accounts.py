"""Where a call's time goes: its limit, and what is left, told apart by measurements.

    seconds = limit + call + barriers + instructions + rest

- limit: max(bytes / measured bandwidth, operations / measured peak of the arithmetic).
- call: the same call on the smallest shape: Python, the binding, the entry.
- barriers: jobs the thread pool ran for it, each at the cost of one without work.
- instructions: what the same loop takes beyond that with its data in a processor cache, where the
  limit is memory; where it is arithmetic, all that is left.
- rest: what only data from memory adds beyond reading it at full speed, and threads that wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from quire.kernels.cpu.native import native
from quire.kernels.cpu.probe import MachineSpeed, measure_machine

Result = TypeVar("Result")


@dataclass(frozen=True)
class Costs:
    """What this machine reaches, and what a barrier costs on it.

    Attributes:
        speed: Peaks and bandwidth of the threads in use.
        barrier: Seconds of a job of the thread pool beyond its work.
    """

    speed: MachineSpeed
    barrier: float

    @classmethod
    def measured(cls) -> Costs:
        """Measure for about three seconds."""
        return cls(measure_machine(native.num_threads()), native.measure_barrier())

    def around(self, work: Callable[[], Result]) -> tuple[Costs, Result]:
        """Do the work; return also what the machine reached meanwhile.

        Its bandwidth is the mean of what was measured just before and just after: where a virtual
        machine's neighbours come and go it halves and doubles within minutes.
        """
        before = native.measure_read()
        result = work()
        bandwidth = (before + native.measure_read()) / 2
        return replace(self, speed=replace(self.speed, read_bytes_per_second=bandwidth)), result

    def limit(self, nbytes: float, operations: float, peak: float) -> tuple[float, str]:
        """Return the least seconds and what binds: ``memory`` or ``arithmetic``."""
        reading, computing = nbytes / self.speed.read_bytes_per_second, operations / peak
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
        limit, bound: Of :meth:`Costs.limit`.
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
