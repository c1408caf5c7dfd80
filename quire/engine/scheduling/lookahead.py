"""Slots for proposed tokens: how many each request of a step gets; it knows no way to propose."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from quire.core.metrics import Samples
from quire.core.sampling_params import SamplingParams
from quire.core.step import (
    NotComputed,
    ScheduledRequest,
    SchedulerOutput,
    SequenceResult,
    StepOutput,
)
from quire.engine.cache.kv_cache_manager import KVCacheManager
from quire.engine.request import Request
from quire.settings.config import SchedulerOptions

#: Parts of the rows that may be new, and that there may be fewer, before a rest ends.
OTHERS, FEWER = 0.2, 0.05


class LookaheadPolicy(Protocol):
    """Says how many tokens are worth proposing."""

    def began(self, request_id: str, params: SamplingParams) -> None:
        """A sequence is in a plan for the first time, or again."""
        ...

    def is_ready(self, num_running: int, has_new: bool) -> bool:
        """Return whether tokens may be proposed in the next step.

        Args:
            num_running: Number of running sequences.
            has_new: Whether one of them is new.
        """
        ...

    @property
    def keeps_states(self) -> bool:
        """Whether what the next step computes is kept for later proposals."""
        ...

    def choose(self, decodes: Sequence[Request], num_other_rows: int) -> Sequence[int]:
        """Return the number of tokens that may be proposed for each request that decodes next.

        Args:
            decodes: Requests that decode in the next step, at least one.
            num_other_rows: Number of other rows that the step computes.
        """
        ...

    def rest(self) -> int:
        """Return the number of steps after this one for which the policy need not be asked.

        They count as over.
        """
        ...

    def observe(self, request: Request, result: SequenceResult) -> None:
        """A step has brought tokens for a request that might get some proposed."""
        ...

    def brought(self, is_ready: bool, num_decodes: int, num_tokens: int, seconds: float) -> None:
        """A step of nothing but decoding requests has ended, asked about or not.

        Args:
            is_ready: The answer of :meth:`is_ready` for the step.
            num_decodes: Number of requests in the step.
            num_tokens: Number of tokens that the step brought.
            seconds: Time of the whole step.
        """
        ...

    def step_ended(self, num_rows: int, seconds: float, draft_seconds: float) -> None:
        """A step of nothing but decoding requests has ended for which lengths were chosen.

        Args:
            num_rows: Number of rows that it computed, those of proposed tokens included.
            seconds: Time of the whole step.
            draft_seconds: Part of it that was spent on proposing.
        """
        ...

    def ended(self, request: Request) -> None:
        """A request is gone."""
        ...

    def samples(self) -> Samples:
        """Return counters by metric stem."""
        ...


@dataclass(slots=True)
class _Asked:
    """A plan's question to the policy, and its answer.

    Attributes:
        is_alone: Whether the policy chose lengths and all rows of the plan decode.
        is_ready: Whether the policy was ready to propose.
        num_given: Number of slots that were given.
    """

    is_alone: bool
    is_ready: bool = True
    num_given: int = 0


_RESTED, _NOT_READY = _Asked(is_alone=False), _Asked(is_alone=False, is_ready=False)


class Lookahead:
    """Gives slots to the decoding requests of a plan, after everything else has got its own.

    No request waits for a block, a row or a preemption because of tokens that are only proposed.

    Args:
        kv: Blocks of all requests.
        policy: The policy that says how many tokens are worth proposing.
        options: Limits of the tokens that a step computes and draws.
    """

    def __init__(
        self, kv: KVCacheManager, policy: LookaheadPolicy, options: SchedulerOptions
    ) -> None:
        self._kv = kv
        self.policy = policy
        self._options = options
        self._asked: deque[_Asked] = deque()  # of plans under way
        self._num_resting = 0
        # Of the rows when a rest began: how many there were, and how many have come since.
        self._num_rows = self._num_others = 0

    def extend(
        self, plan: SchedulerOutput, requests: Mapping[str, Request], num_running: int
    ) -> None:
        """Add slots to a plan.

        Args:
            plan: The step's plan, otherwise complete.
            requests: The live requests by id.
            num_running: Number of running sequences; each may need a block in the next step.
        """
        for new in plan.new_requests:
            self.policy.began(new.request_id, new.params)
        for fork in plan.forks:
            self.policy.began(fork.child_id, fork.params)
        is_ready = self.policy.is_ready(num_running, bool(plan.new_requests))
        plan.keeps_states = self.policy.keeps_states
        if not is_ready or (self._num_resting and self._are_others(plan)):
            self._num_resting = 0
        if self._num_resting or not is_ready:
            self._num_resting = max(self._num_resting - 1, 0)
            self._asked.append(_RESTED if is_ready else _NOT_READY)
            return
        rows: list[ScheduledRequest] = []
        decodes: list[Request] = []
        for row in plan.scheduled:
            # The first token must not wait for a proposal.
            if row.samples and (request := requests[row.request_id]).num_output_tokens > 0:
                rows.append(row)
                decodes.append(request)
        decode_alone = len(rows) == len(plan.scheduled)
        asked = _Asked(is_alone=decode_alone)
        self._asked.append(asked)
        if not rows:
            return
        num_others = 0
        if not decode_alone:
            num_others = plan.num_scheduled_tokens - sum(row.num_scheduled_tokens for row in rows)
        lengths = self.policy.choose(decodes, num_others)
        if not any(lengths):
            self._num_resting = self.policy.rest()
            self._num_rows, self._num_others = len(plan.scheduled), 0
            return
        options = self._options
        room = min(
            options.max_num_batched_tokens - plan.num_scheduled_tokens,
            options.max_logits_rows - sum(row.samples for row in plan.scheduled) - len(plan.forks),
        )
        for row, request, most in zip(rows, decodes, lengths, strict=True):
            # The last token of a sequence is drawn, and its KV is never written.
            most = min(most, room, request.max_total_tokens - request.num_tokens - 1)
            if most > 0:
                given = self._give(row, request, most, num_running)
                room, asked.num_given = room - given, asked.num_given + given

    def settle(self, request: Request, result: SequenceResult) -> None:
        """Take back slots that a request got: its step has ended, and accepted tokens count."""
        self._kv.settle(request)
        self.policy.observe(request, result)

    def step_ended(self, plan: SchedulerOutput, output: StepOutput, seconds: float) -> None:
        """Tell the policy what a step took and brought, if it had no prompts."""
        asked, results = self._asked.popleft(), output.results.values()
        num_rows, num_decodes = plan.num_scheduled_tokens, len(plan.scheduled)
        if num_rows == num_decodes and not plan.new_requests:
            num_tokens = num_decodes
            if asked.num_given:
                num_tokens = sum([len(result.token_ids) for result in results])
            self.policy.brought(asked.is_ready, num_decodes, num_tokens, seconds)
        if asked.is_alone and not output.ids(NotComputed.DROPPED):
            if asked.num_given:
                num_rows += sum(result.num_proposed for result in results)
            self.policy.step_ended(num_rows, seconds, output.propose_seconds)

    def _are_others(self, plan: SchedulerOutput) -> bool:
        """Return whether requests have come or gone so that it is worth asking again.

        One of few is; where many decode, one that came changes little, and each that went without
        another one leaves more time for proposals.
        """
        self._num_others += len(plan.new_requests) + len(plan.forks)
        num_rows = self._num_rows
        fewer = len(plan.scheduled) < (1.0 - FEWER) * num_rows
        return fewer or self._num_others > OTHERS * num_rows

    def _give(self, row: ScheduledRequest, request: Request, most: int, num_running: int) -> int:
        """Give a row up to ``most`` slots; return how many."""
        kv, num_new_tokens = self._kv, row.num_scheduled_tokens
        own = kv.lookahead_room(request, num_new_tokens)
        num_missing = -(-(most - own) // kv.block_size)
        if num_missing > max(kv.pool.num_free - num_running, 0):
            most = min(most, own)
        if most <= 0:
            return 0
        if most <= own:
            kv.take_lookahead_room(request, most)
        else:
            found = kv.allocate_slots(request, num_new_tokens, num_lookahead_tokens=most)
            if found is None:
                return 0
            row.new_block_ids = [*row.new_block_ids, *found.new_block_ids]
        row.num_lookahead_tokens = most
        return most
