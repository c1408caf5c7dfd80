"""Division of a step's prompt tokens between prompts; it knows no blocks and no queue.

Prompts that end within the step go first, least missing tokens first, and alone: the step that
brings their first tokens is short. Else one prompt takes what the step has for prompts. That is the
one with the least missing tokens, but for those that were passed over too often: the oldest one
every third step, any other after a few. So no request waits for the whole of a long prompt, and no
prompt waits for ever (shortest remaining time first, with ageing).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from quire.core.step import SchedulerOutput
from quire.engine.request import Request
from quire.engine.scheduling.chunk_size import LEAST_TOKENS, ChunkSize
from quire.planner.step_times import StepTimes
from quire.settings.config import SchedulerOptions

#: Steps in a row that a prompt is passed over before its turn comes: the oldest one, and others.
OLDEST_PATIENCE = 2
PATIENCE = 4
#: A long prompt starts with few tokens, so that those after it in the queue come to their turns.
FIRST_PART = 16
#: With this many prompts half computed, further long ones stay in the queue.
MAX_STARTED_PROMPTS = 16

#: Prompt tokens of a step that others wait for, where no setting says otherwise.
PROMPT_TOKENS = 112
#: There, prompts of at most that many may have more together, as long as the step takes no longer
#: than this: a burst of them starts at once, and decoding requests pause too briefly to matter.
BURST_SECONDS = 0.1

#: A request and how many of its tokens a step may compute.
Want = tuple[Request, int]


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Limits of the prompt tokens of a step.

    Attributes:
        room: Tokens of all prompts together, at most.
        whole: Tokens of a prompt that ends within the step, at most.
        part: Tokens of a prompt that does not, at most.
    """

    room: int
    whole: int
    part: int


@dataclass(frozen=True, slots=True)
class PrefillDivision:
    """The prompt tokens that a step computes, by request.

    Attributes:
        shares: Tokens of running requests, by request id; those without an entry get none.
        room: Tokens left for requests that start in this step.
        whole: Tokens of a prompt that starts and ends within the step, at most.
        first_part: Tokens of a prompt that starts and does not end within the step, at most.
    """

    shares: dict[str, int]
    room: int
    whole: int
    first_part: int


class PrefillPolicy:
    """Bounds and divides the prompt tokens of steps.

    Args:
        options: Limits and modes.
        takes_more: Whether requests may arrive while others run. When not, none can be held up.

    Attributes:
        divides: Whether prompts take turns. When not, steps are filled in the requests' order.
        chunk_size: The size of long prompts' parts; the scheduler tells it of new requests.
    """

    def __init__(self, options: SchedulerOptions, takes_more: bool) -> None:
        self._options = options
        self.divides = (
            takes_more and options.enable_chunked_prefill and options.batching_type == "inflight"
        )
        self.chunk_size = ChunkSize()
        #: Of sequences as rows: their proposed tokens and drafts are a part of what they take.
        self._times = StepTimes()
        self._passed: dict[str, int] = {}  # steps in a row in which a prompt got nothing

    def step_ended(
        self, plan: SchedulerOutput, requests: Mapping[str, Request], seconds: float
    ) -> None:
        """A step of ``requests``, by their ids, has ended, and nothing of it was dropped."""
        num_decodes, num_prompt_tokens, has_part = 0, 0, False
        for scheduled in plan.scheduled:
            request = requests[scheduled.request_id]
            if request.decodes_after(scheduled.num_computed_tokens):
                num_decodes += 1
                continue
            num_prompt_tokens += scheduled.num_scheduled_tokens
            num_computed = scheduled.num_computed_tokens + scheduled.num_scheduled_tokens
            has_part |= num_computed < request.num_tokens
        self.observe(seconds, num_decodes, num_prompt_tokens, has_part)

    def observe(
        self, seconds: float, num_decodes: int, num_prompt_tokens: int, has_part: bool
    ) -> None:
        """A step has ended, and nothing of it was dropped.

        Args:
            seconds: Seconds that the step took.
            num_decodes: Number of sequences that decoded.
            num_prompt_tokens: Number of prompt tokens that it computed.
            has_part: Whether some of them were a part of a prompt that is not at its end yet.
        """
        self.chunk_size.observe(seconds, num_prompt_tokens, has_part)
        self._times.observe(seconds, num_decodes, num_prompt_tokens)

    def step_seconds(self, num_decodes: int) -> float:
        """Return the seconds that a step of that many decodes takes; 0.0 before the first step."""
        return self._times.seconds(num_decodes)

    @property
    def prompt_token_seconds(self) -> float:
        """Seconds that a prompt token takes in a step; 0.0 before the first step."""
        return self._times.prompt_token_seconds

    def most_prompt_tokens(self, num_decodes: int) -> int:
        """Return the tokens of prompts in a step that others wait for.

        There are some in any case, or no prompt would ever be computed next to decodes that take
        longer than a step should.
        """
        fixed, target = self._options.mixed_prefill_tokens, self._options.target_itl_ms
        budget = self._options.max_num_batched_tokens
        if fixed is not None:
            return min(fixed or budget, budget)
        if target is not None:
            return min(max(self._fit(target / 1000, num_decodes), LEAST_TOKENS), budget)
        return min(max(self._fit(BURST_SECONDS, num_decodes), PROMPT_TOKENS), budget)

    def most_of_one(self, num_decodes: int) -> int:
        """Return how many of :meth:`most_prompt_tokens` one prompt may have."""
        most = self.most_prompt_tokens(num_decodes)
        if self._options.mixed_prefill_tokens is None and self._options.target_itl_ms is None:
            return min(most, PROMPT_TOKENS)
        return most

    def limits(self, now: float, num_decodes: int) -> StepLimits:
        """Return how many tokens prompts get in the next step, when they take turns."""
        room = max(self.budget(num_decodes) - num_decodes, 1)
        one = self.most_of_one(num_decodes)
        return StepLimits(room, min(room, one), self.chunk_size.tokens(now, num_decodes, one))

    def _fit(self, seconds: float, num_decodes: int) -> int:
        """Return how many tokens of prompts fit into a step, as far as steps were measured."""
        if not self._times.is_known:
            return PROMPT_TOKENS
        return self._times.prompt_tokens(seconds, num_decodes)

    def budget(self, num_decodes: int) -> int:
        """Return the tokens of a step: few of prompts where others would have to wait for them."""
        options = self._options
        if options.enable_chunked_prefill and (num_decodes or self.divides):
            most = num_decodes + self.most_prompt_tokens(num_decodes)
            return min(options.max_num_batched_tokens, most)
        return options.max_num_batched_tokens

    def chunk(self, num_tokens: int, room: int, most: int) -> int:
        """Return how many of a request's missing tokens to compute in a step with this room.

        Args:
            num_tokens: Number of the request's missing tokens.
            room: Number of tokens that the step has left.
            most: Number of tokens, at most, for a request that needs more than ``room``.
        """
        num_tokens = self._limited(num_tokens)
        return num_tokens if num_tokens <= room else min(room, most)

    def divide(
        self,
        prompts: Sequence[Want],
        head: Want | None,
        num_waiting: int,
        limits: StepLimits,
    ) -> PrefillDivision:
        """Divide the prompt tokens of a step between prompts that take turns.

        Args:
            prompts: Running requests whose prompts are not computed, oldest first, with the number
                of missing tokens.
            head: The request that would start next, with the number of its missing tokens; None
                where none would.
            num_waiting: Number of requests in the queue.
            limits: The step's limits.
        """
        room, whole = limits.room, limits.whole
        wants = [(request, self._limited(missing)) for request, missing in prompts]
        reserved = 0
        if head is not None and self._limited(head[1]) <= whole:
            wants.append((head[0], self._limited(head[1])))
        elif head is not None:
            if not prompts and num_waiting == 1:
                return PrefillDivision({}, room, whole, min(whole, limits.part))
            if len(prompts) < MAX_STARTED_PROMPTS:
                reserved = min(room // 2 if prompts else room, FIRST_PART * num_waiting)
        head_id = head and head[0].request_id
        left = replace(limits, room=room - reserved)
        shares = self._shares(wants, left, num_waiting, head_id)
        self._passed = {
            request.request_id: self._passed.get(request.request_id, 0) + 1
            for request, _ in wants
            if request.request_id not in shares
        }
        if head is not None and shares.pop(head[0].request_id, 0):
            reserved = room - sum(shares.values())
        return PrefillDivision(shares, reserved, whole, FIRST_PART)

    def _shares(
        self, wants: list[Want], limits: StepLimits, num_waiting: int, head_id: str | None
    ) -> dict[str, int]:
        room, due = limits.room, self._due(wants)
        ending_room = room if due is None else room // 2
        ending = self._ending(wants, replace(limits, room=ending_room), due)
        shares = {request.request_id: want for request, want in ending}
        if due is None and not ending and wants:
            due = min(wants, key=_shortest_first)
        if due is not None:
            # It shares with the others what one prompt may have, so that the step is no longer.
            half = limits.whole // 2
            left = max(limits.whole - sum(shares.values()), half)
            if head_id in shares:  # those after it in the queue may be as short
                left -= min(left - half, shares[head_id] * (num_waiting - 1))
            shares[due[0].request_id] = min(due[1], left, limits.part)
        return shares

    def _limited(self, num_tokens: int) -> int:
        limit = self._options.long_prefill_token_threshold
        return min(num_tokens, limit) if limit else num_tokens

    def _due(self, wants: list[Want]) -> Want | None:
        """Return the prompt whose turn has come, the longest passed over first, or None."""
        due, most = None, 0
        for position, (request, want) in enumerate(wants):
            passed = self._passed.get(request.request_id, 0)
            patience = PATIENCE if position else OLDEST_PATIENCE
            if passed >= patience and passed > most:
                due, most = (request, want), passed
        return due

    def _ending(self, wants: list[Want], limits: StepLimits, due: Want | None) -> list[Want]:
        """Return the prompts that end within the room together, shortest first.

        The end of a long prompt is a part like its others: where it is too long, longer ones may
        still end in the step.
        """
        ended, room = [], limits.room
        for entry in sorted(wants, key=_shortest_first):
            if due is not None and entry[0] is due[0]:
                continue
            longest = min(room, limits.whole)
            if entry[1] <= (min(longest, limits.part) if entry[0].num_computed_tokens else longest):
                ended.append(entry)
                room -= entry[1]
        return ended


def _shortest_first(entry: Want) -> tuple[int, int, tuple[float, int, int]]:
    request, want = entry
    return request.priority, want, request.order
