"""Who is in which plan while several are under way: a request is in one of them at a time.

Stages compute plans one after another, each as long as the slowest one takes. So decodes are
divided evenly: with as many plans as stages, each of about as many decodes, no stage is idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence, Set

from quire.core.step import SchedulerOutput
from quire.engine.request import Request


class Turns:
    """The requests of plans under way, and when these were made.

    Args:
        depth: Plans at once, at most.

    Attributes:
        away: Running requests that are not in the next plan.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.away: Set[str] = frozenset()
        self._ids: set[str] = set()
        self._planned: deque[float] = deque()
        self._ended_time = 0.0

    def __contains__(self, request_id: str) -> bool:
        """Whether a plan with it is under way, or one that it splits off in."""
        return request_id in self._ids

    def begin(self, running: Sequence[Request], unready: Set[str]) -> Set[str]:
        """Choose who sits the next plan out.

        Args:
            running: All, oldest first.
            unready: Those that cannot be in it.

        Returns:
            ``unready``, and :attr:`away`.
        """
        if self.depth == 1:
            return unready
        decodes = [request for request in running if request.decodes]
        free = [r.request_id for r in decodes if r.request_id not in self._ids | unready]
        num_left = max(self.depth - len(self._planned), 1)
        share = min(-(-len(free) // num_left), -(-len(decodes) // self.depth))
        self.away = self._ids.union(free[share:])
        return unready | self.away

    def num_decodes(self, running: Sequence[Request]) -> int:
        """Return how many decode in the next plan."""
        if not self.away:
            return sum(request.decodes for request in running)
        return sum(r.decodes for r in running if r.request_id not in self.away)

    def planned(self, plan: SchedulerOutput, now: float) -> None:
        """A plan was made at ``now``, and will be under way until its result is there."""
        self._planned.append(now)
        if self.depth > 1:
            self._ids.update(_ids(plan))

    def ended(self, plan: SchedulerOutput, now: float) -> float:
        """Its result is there; return the seconds since it was made, or the one before it ended."""
        seconds = now - max(self._planned.popleft(), self._ended_time)
        self._ended_time = now
        if self.depth > 1:
            self._ids.difference_update(_ids(plan))
        return seconds


def _ids(plan: SchedulerOutput) -> list[str]:
    return [row.request_id for row in plan.scheduled] + [fork.child_id for fork in plan.forks]
