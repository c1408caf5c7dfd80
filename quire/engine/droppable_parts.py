"""Which parts of long prompts may be given up in the midst of a step, for a request that comes.

So a request waits for the end of a layer, not of a step that is long because somebody else's prompt
is. What was computed of the part is lost: a prompt that has lost one gets the next one computed,
whoever comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from quire.core.step import SchedulerOutput
from quire.engine.request import Request


class DroppableParts:
    """Remembers who has lost a part.

    Attributes:
        owed: Requests whose next part is computed.
    """

    def __init__(self) -> None:
        self.owed: set[str] = set()

    def choose(self, plan: SchedulerOutput, requests: Mapping[str, Request]) -> frozenset[str]:
        """Return whose parts in a plan may be given up: where they are most of the step.

        The rest of it is computed all the same, from the beginning.
        """
        parts = {
            row.request_id: row.num_scheduled_tokens
            for row in plan.scheduled
            if row.num_computed_tokens + row.num_scheduled_tokens
            < requests[row.request_id].num_prompt_tokens
        }
        are_most = 2 * sum(parts.values()) > plan.num_scheduled_tokens
        return frozenset(parts) if are_most and not self.owed & parts.keys() else frozenset()

    def step_ended(self, plan: SchedulerOutput, dropped_ids: Set[str]) -> None:
        """A plan was computed but for the parts of these requests."""
        self.owed.difference_update(row.request_id for row in plan.scheduled)
        self.owed |= dropped_ids

    def ended(self, request: Request) -> None:
        """A request is gone."""
        self.owed.discard(request.request_id)
