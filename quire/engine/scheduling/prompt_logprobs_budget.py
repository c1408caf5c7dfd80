"""The budget of a step for log-probabilities of prompts, besides computing their tokens.

Each token of such a prompt is a row of logits, which are read, listed, sent and decoded: many times
the work of a plain token's. So a step has few of them, and a long prompt takes more steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.engine.request import Request
from quire.engine.scheduling.prefill_policy import FIRST_PART, MAX_STARTED_PROMPTS

#: A row costs this much, and 1 for each of the likeliest tokens that it lists; so much of it is in
#: one step: as many rows of 20 as a prompt that others wait for has tokens.
ROW_COST = 16
STEP_COST = 4032


class PromptLogprobsBudget:
    """The rows of logits of prompts in one step.

    Args:
        limited: Whether their number is bounded: prompts may be cut, and other requests wait.
    """

    def __init__(self, limited: bool) -> None:
        self._limited = limited
        self._spent = 0
        self._has_given_more = False

    def most(self, request: Request, room: int) -> int:
        """Return how many tokens of a request the step may have, at most ``room``.

        The first request with log-probabilities of its prompt gets one at least.
        """
        if not self._limited or not request.needs_prompt_logprobs:
            return room
        most = (STEP_COST - self._spent) // _cost(request)
        return min(room, max(most, 0 if self._spent else 1))

    def most_of_new(self, request: Request, room: int, running: Sequence[Request]) -> int:
        """Return :meth:`most` of a request that starts: a few even if others have all, once a step.

        So the request does not keep those after it in the queue from starting, as long as not too
        many have started.
        """
        most = self.most(request, room)
        if most or self._has_given_more or not room:
            return most
        self._has_given_more = True
        if sum(one.needs_prompt_logprobs for one in running) >= MAX_STARTED_PROMPTS:
            return 0
        return min(room, FIRST_PART, max(STEP_COST // _cost(request), 1))

    def take(self, request: Request, num_tokens: int) -> None:
        """Count what the step has of a request."""
        if request.needs_prompt_logprobs:
            self._spent += num_tokens * _cost(request)


def _cost(request: Request) -> int:
    num_top = request.params.prompt_logprobs or 0
    return ROW_COST + num_top if num_top >= 0 else STEP_COST
