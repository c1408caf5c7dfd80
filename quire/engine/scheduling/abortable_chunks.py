"""Parts of long prompts that may be given up in the midst of a step, for a request that arrives.

So a request waits for the end of a layer, not of a step that is long because another request's
prompt is. What was computed of the part is lost: after some of them in a row the next one is
computed, whatever requests arrive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set

from quire.core.step import ScheduledRequest, SchedulerOutput
from quire.engine.request import Request

#: Parts of one prompt that may be dropped in a row. With one, every twentieth of the requests that
#: arrive each second meets a part that is computed to its end.
MAX_DROPPED = 2


class AbortableChunks:
    """Counts the parts that each request has lost in a row."""

    def __init__(self) -> None:
        self._num_dropped: Counter[str] = Counter()

    @property
    def owes(self) -> bool:
        """Whether a request's next part must be computed, whatever requests arrive."""
        return any(number >= MAX_DROPPED for number in self._num_dropped.values())

    def choose(self, plan: SchedulerOutput, requests: Mapping[str, Request]) -> frozenset[str]:
        """Return the requests whose parts in a plan may be given up: where they are most of it.

        The rest of the step is computed all the same, from the beginning.
        """
        starting = {new.request_id for new in plan.new_requests}
        parts = {
            row.request_id: row.num_scheduled_tokens
            for row in plan.scheduled
            if _is_part(row, requests[row.request_id], row.request_id in starting)
        }
        are_most = 2 * sum(parts.values()) > plan.num_scheduled_tokens
        is_owed = any(self._num_dropped[name] >= MAX_DROPPED for name in parts)
        return frozenset(parts) if are_most and not is_owed else frozenset()

    def step_ended(self, plan: SchedulerOutput, dropped_ids: Set[str]) -> None:
        """A plan was computed but for the parts of these requests."""
        for row in plan.scheduled:
            if row.request_id in dropped_ids:
                self._num_dropped[row.request_id] += 1
            else:
                del self._num_dropped[row.request_id]

    def ended(self, request: Request) -> None:
        """A request is gone."""
        del self._num_dropped[request.request_id]


def _is_part(row: ScheduledRequest, request: Request, is_first: bool) -> bool:
    """Return whether a row is not the whole of what its prompt misses; the last one is a part."""
    left = request.num_prompt_tokens - row.num_computed_tokens
    return row.num_scheduled_tokens < left if is_first else left > 0
