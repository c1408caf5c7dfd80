"""Slots for proposed tokens: which requests of a step get how many; it knows no way to propose."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from quire.core.config import SchedulerOptions
from quire.core.metrics import Samples
from quire.core.step import ScheduledRequest, SchedulerOutput, SequenceResult, StepOutput
from quire.engine.kv_cache_manager import KVCacheManager
from quire.engine.request import Request

#: Parts of the rows that may be new, and that there may be fewer, before a rest ends.
OTHERS, FEWER = 0.2, 0.05


class LookaheadPolicy(Protocol):
    """Says how many tokens are worth proposing."""

    def choose(self, decodes: Sequence[Request], num_other_rows: int) -> Sequence[int]:
        """Return for each request that decodes in the next step how many it may get.

        Args:
            decodes: At least one.
            num_other_rows: That the step computes, too.
        """
        ...

    def rest(self) -> int:
        """Return for how many steps after this one nobody need be asked; they count as over."""
        ...

    def observe(self, request: Request, result: SequenceResult) -> None:
        """A step has brought tokens for a request that might get some proposed."""
        ...

    def step_ended(self, num_rows: int, seconds: float, draft_seconds: float) -> None:
        """A step of nothing but decoding requests has ended.

        Args:
            num_rows: It computed, those of proposed tokens included.
            seconds: It took in all.
            draft_seconds: Of them, those of proposing.
        """
        ...

    def ended(self, request: Request) -> None:
        """A request is gone."""
        ...

    def samples(self) -> Samples:
        """Return counters by metric stem."""
        ...


class Lookahead:
    """Gives slots to the decoding requests of a plan, after everything else has got its own.

    Nobody waits for a block, a row or a preemption because of tokens that are only proposed.

    Args:
        kv: Blocks of all requests.
        policy: Says how many tokens are worth it.
        options: Most tokens that a step computes, and draws.
    """

    def __init__(
        self, kv: KVCacheManager, policy: LookaheadPolicy, options: SchedulerOptions
    ) -> None:
        self._kv = kv
        self.policy = policy
        self._options = options
        self._decodes_alone: deque[bool] = deque()  # of plans under way
        self._num_resting = 0
        # Of the rows when a rest began: how many there were, and how many have come since.
        self._num_rows = self._num_others = 0

    def extend(
        self, plan: SchedulerOutput, requests: Mapping[str, Request], num_running: int
    ) -> None:
        """Add slots to a plan.

        Args:
            plan: Of the step, complete.
            requests: By id.
            num_running: Each of them may need a block in the next step.
        """
        if self._num_resting and self._are_others(plan):
            self._num_resting = 0
        if self._num_resting:
            self._num_resting -= 1
            self._decodes_alone.append(False)
            return
        rows: list[ScheduledRequest] = []
        decodes: list[Request] = []
        for row in plan.scheduled:
            # The first token must not wait for a proposal.
            if row.samples and (request := requests[row.request_id]).num_output_tokens > 0:
                rows.append(row)
                decodes.append(request)
        decode_alone = len(rows) == len(plan.scheduled)
        self._decodes_alone.append(decode_alone)
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
                room -= self._give(row, request, most, num_running)

    def settle(self, request: Request, result: SequenceResult) -> None:
        """Take back slots that a request got: its step has ended, and accepted tokens count."""
        self._kv.settle(request)
        self.policy.observe(request, result)

    def step_ended(self, plan: SchedulerOutput, output: StepOutput, seconds: float) -> None:
        """Tell the policy what a step took that was asked about, if it had no prompts."""
        if self._decodes_alone.popleft() and not output.dropped_ids:
            num_proposed = sum(result.num_proposed for result in output.results.values())
            num_rows = plan.num_scheduled_tokens + num_proposed
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
