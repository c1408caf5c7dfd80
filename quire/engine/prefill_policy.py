"""How a step's prompt tokens are divided between prompts; it knows no blocks and no queue.

Prompts that end within the step go first, least missing tokens first, and alone: the step that
brings their first tokens is short. Else one prompt takes what the step has for prompts. That is the
one with the least missing tokens, but for those that were passed over too often: the oldest one
every third step, any other after a few. So nobody waits for the whole of a long prompt, and no
prompt waits for ever (shortest remaining time first, with ageing).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.config import SchedulerOptions
from quire.engine.chunk_size import ChunkSize
from quire.engine.request import Request

#: Steps in a row that a prompt is passed over before its turn comes: the oldest one, and others.
OLDEST_PATIENCE = 2
PATIENCE = 4
#: A long prompt starts with few tokens, so that those after it in the queue come to their turns.
FIRST_PART = 16
#: With this many prompts half computed, further long ones stay in the queue.
MAX_STARTED_PROMPTS = 16

#: A request and how many of its tokens a step may compute.
Want = tuple[Request, int]


@dataclass(frozen=True, slots=True)
class Division:
    """How many tokens of prompts a step computes.

    Attributes:
        shares: By request id, of running requests; those without one get none.
        room: Tokens left for requests that start in this step.
        first_part: Most of a prompt that starts without fitting into the room.
    """

    shares: dict[str, int]
    room: int
    first_part: int


class PrefillPolicy:
    """Bounds and divides the prompt tokens of steps.

    Args:
        options: Limits and modes.
        takes_more: Whether requests may come while others run. When not, nobody can be held up.

    Attributes:
        divides: Whether prompts take turns. When not, steps are filled in the requests' order.
        chunk_size: Told of requests that come and of steps that end.
    """

    def __init__(self, options: SchedulerOptions, takes_more: bool) -> None:
        self._options = options
        self.divides = (
            takes_more and options.enable_chunked_prefill and options.batching_type == "inflight"
        )
        self.chunk_size = ChunkSize(options.mixed_prefill_tokens or options.max_num_batched_tokens)
        self._passed: dict[str, int] = {}  # steps in a row in which a prompt got nothing

    def budget(self, num_decodes: int) -> int:
        """Return the tokens of a step: few of prompts where others would have to wait for them."""
        options = self._options
        bounded = options.mixed_prefill_tokens and options.enable_chunked_prefill
        if bounded and (num_decodes or self.divides):
            return min(options.max_num_batched_tokens, num_decodes + options.mixed_prefill_tokens)
        return options.max_num_batched_tokens

    def chunk(self, num_tokens: int, room: int, most: int) -> int:
        """Return how many of a request's missing tokens to compute in a step with this room.

        Args:
            num_tokens: Missing.
            room: Tokens that are left.
            most: Of them, for a request that needs more than ``room``.
        """
        num_tokens = self._limited(num_tokens)
        return num_tokens if num_tokens <= room else min(room, most)

    def divide(
        self,
        prompts: Sequence[Want],
        head: Want | None,
        num_waiting: int,
        room: int,
        most: int,
    ) -> Division:
        """Divide the prompt tokens of a step between prompts that take turns.

        Args:
            prompts: Running requests whose prompts are not computed, oldest first, with the number
                of missing tokens.
            head: The request that would start next, and its missing tokens; None for nobody.
            num_waiting: Requests in the queue.
            room: Tokens that the step has for prompts.
            most: Of them, for a part of a prompt that does not end.
        """
        wants = [(request, self._limited(missing)) for request, missing in prompts]
        reserved = 0
        if head is not None and self._limited(head[1]) <= room:
            wants.append((head[0], self._limited(head[1])))
        elif head is not None:
            if not prompts and num_waiting == 1:
                return Division({}, room, min(room, most))
            if len(prompts) < MAX_STARTED_PROMPTS:
                reserved = min(room // 2 if prompts else room, FIRST_PART * num_waiting)
        head_id = head and head[0].request_id
        shares = self._shares(wants, room - reserved, most, num_waiting, head_id)
        self._passed = {
            request.request_id: self._passed.get(request.request_id, 0) + 1
            for request, _ in wants
            if request.request_id not in shares
        }
        if head is not None and shares.pop(head[0].request_id, 0):
            reserved = room - sum(shares.values())
        return Division(shares, reserved, FIRST_PART)

    def _shares(
        self, wants: list[Want], room: int, most: int, num_waiting: int, head_id: str | None
    ) -> dict[str, int]:
        due = self._due(wants)
        ending = self._ending(wants, room if due is None else room // 2, most, due)
        shares = {request.request_id: want for request, want in ending}
        if due is None and not ending and wants:
            due = min(wants, key=_shortest_first)
        if due is not None:
            left = room - sum(shares.values())
            if head_id in shares:  # those after it in the queue may be as short
                left -= min(left - room // 2, shares[head_id] * (num_waiting - 1))
            shares[due[0].request_id] = min(due[1], left, most)
        return shares

    def _limited(self, num_tokens: int) -> int:
        limit = self._options.long_prefill_token_threshold
        return min(num_tokens, limit) if limit else num_tokens

    def _due(self, wants: list[Want]) -> Want | None:
        """Return whose turn has come, the longest passed over first; None for nobody's."""
        due, most = None, 0
        for position, (request, want) in enumerate(wants):
            passed = self._passed.get(request.request_id, 0)
            patience = PATIENCE if position else OLDEST_PATIENCE
            if passed >= patience and passed > most:
                due, most = (request, want), passed
        return due

    def _ending(self, wants: list[Want], room: int, most: int, due: Want | None) -> list[Want]:
        """Return those that end within ``room`` together, shortest first.

        The end of a long prompt is a part like its others: too long a one holds up no longer ones.
        """
        ended = []
        for entry in sorted(wants, key=_shortest_first):
            if due is not None and entry[0] is due[0]:
                continue
            if entry[1] <= (min(room, most) if entry[0].num_computed_tokens else room):
                ended.append(entry)
                room -= entry[1]
        return ended


def _shortest_first(entry: Want) -> tuple[int, int, tuple[float, int, int]]:
    request, want = entry
    return request.priority, want, request.order
