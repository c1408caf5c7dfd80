"""Division of requests between several plans under way: a request waits for its plan's result.

A part of a prompt that draws nothing brings no result: the next part may be in the next plan, and
its tokens count as computed when they are planned. So a single prompt keeps all stages at work.

Stages compute plans one after another, each as long as the slowest one takes. So decodes are
divided evenly: with as many plans as stages, each of about as many decodes, no stage is idle.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence, Set

from quire.core.step import ScheduledRequest, SchedulerOutput
from quire.engine.request import Request


class Turns:
    """The requests of plans under way, and when these were made.

    Args:
        depth: Number of plans under way at once, at most.

    Attributes:
        away: Running requests that are not in the next plan.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.away: Set[str] = frozenset()
        self._num_plans: Counter[str] = Counter()
        self._waiting: set[str] = set()  # the requests among these that wait for results
        self._planned: deque[float] = deque()
        self._ended_time = 0.0

    def __contains__(self, request_id: str) -> bool:
        """Return whether a plan with a request is under way, or one that it splits off in."""
        return request_id in self._num_plans

    @property
    def are_over(self) -> bool:
        """Whether no request is in a plan under way, or left for a later one."""
        return not (self._num_plans or self.away)

    def num_plans(self, request_id: str) -> int:
        """Return how many plans with a request are under way."""
        return self._num_plans[request_id]

    def waits(self, request_id: str) -> bool:
        """Return whether a request is in no further plan before those under way have ended."""
        return request_id in self._waiting

    def wait(self, request_id: str) -> None:
        """Keep a request out of further plans until the plans with it have ended."""
        assert request_id in self._num_plans, f"no plan with {request_id} is under way"
        self._waiting.add(request_id)

    def begin(self, running: Sequence[Request], unready: Set[str]) -> Set[str]:
        """Choose the requests that sit the next plan out.

        Args:
            running: All running requests, oldest first.
            unready: Ids of requests that cannot be in the plan.

        Returns:
            The ids of ``unready`` and of :attr:`away`.
        """
        if self.depth == 1:
            return unready
        decodes = [request for request in running if request.decodes]
        free = [r.request_id for r in decodes if r.request_id not in self._waiting | unready]
        num_left = max(self.depth - len(self._planned), 1)
        share = min(-(-len(free) // num_left), -(-len(decodes) // self.depth))
        self.away = self._waiting.union(free[share:])
        return unready | self.away

    def num_decodes(self, running: Sequence[Request]) -> int:
        """Return how many requests decode in the next plan."""
        if not self.away:
            return sum(request.decodes for request in running)
        return sum(r.decodes for r in running if r.request_id not in self.away)

    def planned(self, plan: SchedulerOutput, requests: Mapping[str, Request], now: float) -> None:
        """A plan was made at ``now``, and will be under way until its result is there."""
        self._planned.append(now)
        if self.depth == 1:
            return
        self._num_plans.update(_ids(plan))
        self._waiting.update(fork.child_id for fork in plan.forks)
        for row in plan.scheduled:
            request = requests[row.request_id]
            if _brings_nothing(row, request):
                request.num_computed_tokens += row.num_scheduled_tokens
            else:
                self._waiting.add(row.request_id)

    def ended(self, plan: SchedulerOutput, now: float) -> float:
        """End a plan whose result is there; return the seconds that its stages worked on it.

        They count from when it was made, or from the end of the plan before it.
        """
        seconds = now - max(self._planned.popleft(), self._ended_time)
        self._ended_time = now
        if self.depth > 1:
            for request_id in _ids(plan):
                self._num_plans[request_id] -= 1
                if not self._num_plans[request_id]:
                    del self._num_plans[request_id]
                    self._waiting.discard(request_id)
        return seconds


def _ids(plan: SchedulerOutput) -> list[str]:
    return [row.request_id for row in plan.scheduled] + [fork.child_id for fork in plan.forks]


def _brings_nothing(row: ScheduledRequest, request: Request) -> bool:
    """Return whether a request may be in the next plan before a row of it has been computed."""
    if request.was_lost:  # so that it comes to its end, whatever happens to others
        return False
    is_part = row.num_computed_tokens + row.num_scheduled_tokens < len(request.token_ids)
    return is_part and request.params.pooling is None and request.params.prompt_logprobs is None
