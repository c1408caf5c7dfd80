"""The messages between scheduling and execution: a step's plan and its result; plain data.

``engine`` writes :class:`SchedulerOutput` and reads :class:`StepOutput`; ``runner`` does the
opposite. The runner keeps each request's tokens and block table; a plan carries only what is new.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from quire.core.engine_request import EngineRequest
from quire.core.errors import RequestFailure
from quire.core.model.forward_work import ForwardWork
from quire.core.sampling_params import SamplingParams


@dataclass(slots=True)
class NewRequest:
    """A request the runner has not seen, or one that was preempted and starts over.

    Attributes:
        request_id: The request's id, unique among live requests.
        token_ids: Prompt, and for a resumed request the output so far after it.
        num_prompt_tokens: Number of leading ``token_ids`` that are the prompt.
        params: Sampling settings with ``n`` already expanded (each sequence is a request).
        seed: Seed of the sequence's random draws, resolved (never None).
        block_ids: The whole block table for this step.
        num_computed_tokens: Leading tokens whose KV is already in those blocks.
        source: The caller's request; its ``params`` are those of all sequences.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    block_ids: list[int]
    num_computed_tokens: int
    source: EngineRequest


@dataclass(slots=True)
class Fork:
    """A sequence that starts as a copy of ``parent_id`` in the step that ends its prompt.

    The child shares the parent's block table, takes its first token from the parent's last
    logits row with its own seed, and is a request like any other afterwards.
    """

    parent_id: str
    child_id: str
    params: SamplingParams
    seed: int


@dataclass(slots=True)
class ScheduledRequest:
    """One request's part of a step.

    Attributes:
        request_id: A request the runner knows (from ``new_requests`` of this or an earlier plan).
        num_computed_tokens: Tokens before this step's; the step covers positions
            ``[num_computed_tokens, num_computed_tokens + num_scheduled_tokens)``. Starts at 0 again
            after each token when the cache is off, and skips prefix hits.
        num_scheduled_tokens: Tokens to compute, at least 1.
        new_block_ids: Ids appended to the request's block table before the step; empty for a new
            request, whose table came whole. May hold blocks with computed tokens (prefix hits).
        samples: Whether the step reaches the last known token, so that a token is sampled; never
            when the request asks for an embedding.
        num_lookahead_tokens: Tokens that may be proposed after the known ones, which are computed
            in the same step; their slots are in the block table. 0 unless ``samples``.
    """

    request_id: str
    num_computed_tokens: int
    num_scheduled_tokens: int
    new_block_ids: list[int]
    samples: bool
    num_lookahead_tokens: int = 0


class StepInterrupted(Exception):
    """A request arrived in the midst of a step, some of whose rows may be dropped."""


@dataclass(slots=True)
class SchedulerOutput:
    """The plan of one step.

    A request may read blocks that another request of the same step fills (a shared prefix), so each
    layer writes the KV of all rows before any row reads. Where ``scheduled`` is empty, blocks are
    moved all the same.

    Attributes:
        new_requests: Requests that are new to the runner, sent once, before their first appearance
            in ``scheduled``.
        scheduled: Requests of this step in batch order.
        forks: Sequences that split off at the end of this step; the parent is in ``scheduled``
            with ``samples`` set.
        finished_request_ids: Requests that ended or were preempted since the last plan; the runner
            forgets them first.
        block_stores: ``(block_id, block_hash)``: blocks that are put into the block store, as they
            are before the step.
        block_loads: ``(block_id, block_hash)``: blocks filled from the store, after that.
        block_saves: The same as ``block_stores``, but as the blocks are after the step, which fills
            them.
        block_copies: ``(source, destination)`` block ids, copied after loads, before anything is
            computed.
        replaced_blocks: ``(request_id, index, block_id)``: the entry of a block table that changes
            because a shared block was copied on write, or was given back (then the null block).
        sealed_blocks: Blocks that this step fills and that others may then find by their content;
            listed, as ``reused_blocks``, only for a KV canary.
        reused_blocks: ``(request_id, block_ids)`` found by content and not computed again.
        abortable_ids: Requests whose rows, parts of prompts, need not be computed when a request
            arrives.
        keeps_states: Whether proposers are told what the step computes; else nothing is kept for
            them.
        num_scheduled_tokens: Tokens of the whole step, counted by the scheduler as it adds rows.
    """

    new_requests: list[NewRequest] = field(default_factory=list)
    scheduled: list[ScheduledRequest] = field(default_factory=list)
    forks: list[Fork] = field(default_factory=list)
    finished_request_ids: list[str] = field(default_factory=list)
    block_stores: list[tuple[int, bytes]] = field(default_factory=list)
    block_loads: list[tuple[int, bytes]] = field(default_factory=list)
    block_saves: list[tuple[int, bytes]] = field(default_factory=list)
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    replaced_blocks: list[tuple[str, int, int]] = field(default_factory=list)
    sealed_blocks: list[int] = field(default_factory=list)
    reused_blocks: list[tuple[str, list[int]]] = field(default_factory=list)
    abortable_ids: frozenset[str] = frozenset()
    keeps_states: bool = True
    num_scheduled_tokens: int = 0

    @property
    def moves_blocks(self) -> bool:
        """Whether blocks are stored, loaded or saved."""
        return bool(self.block_stores or self.block_loads or self.block_saves)


@dataclass(slots=True)
class TokenLogprobs:
    """Log-probabilities at one position.

    Attributes:
        token_id: The sampled (or given) token.
        logprob: Natural logarithm of its probability, from raw logits.
        rank: Rank of the token in the vocabulary, 1-based.
        top: ``(token_id, logprob)`` of the most likely tokens, best first.
        named: ``(token_id, logprob, rank)`` of the tokens that the request names.
    """

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]
    named: list[tuple[int, float, int]] = field(default_factory=list)


@dataclass(slots=True)
class PromptLogprobs:
    """Log-probabilities of consecutive prompt tokens.

    Attributes:
        start: Position of the first token that ``entries`` is about; at least 1.
        entries: One per prompt token from ``start`` on.
    """

    start: int
    entries: list[TokenLogprobs]


@dataclass(slots=True)
class SequenceResult:
    """The result of a step for one sequence; the last reader may keep it.

    Attributes:
        token_ids: The next tokens in order: proposed ones that were accepted, then one drawn, then
            those its grammar leaves no choice about. The model has not seen the drawn and the
            forced ones. Some may be after the sequence's end.
        num_accepted, num_forced: Number of ``token_ids`` that were accepted (at the front) and
            forced (at the back); the rest was drawn.
        logprobs: One entry per accepted or drawn token, for requests that asked; these get no
            forced tokens.
        prompt_logprobs: Log-probabilities of the prompt tokens whose predecessors were computed in
            this step, for requests that asked. After a preemption entries come again, equal to the
            first ones.
        embedding: (D,) or, of classes, (C,) float32 little-endian, for requests with ``pooling``
            whose prompt this step has ended.
        error: The failure that ends this sequence alone; nothing else counts then.
        num_proposed: Tokens that were proposed and computed, accepted or not.
        accepted_nodes: Indices of the accepted ones where the proposed tokens were a tree.
    """

    token_ids: list[int] = field(default_factory=list)
    num_accepted: int = 0
    num_forced: int = 0
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    embedding: bytes | None = None
    error: RequestFailure | None = None
    num_proposed: int = 0
    accepted_nodes: tuple[int, ...] | None = None

    def part(self, start: int, stop: int) -> SequenceResult:
        """Return what is about the tokens ``[start, stop)`` alone; the first part has the rest."""
        num_free = len(self.token_ids) - self.num_forced
        return replace(
            self,
            token_ids=self.token_ids[start:stop],
            num_accepted=max(0, min(stop, self.num_accepted) - start),
            num_forced=max(0, stop - max(start, num_free)),
            logprobs=None if self.logprobs is None else self.logprobs[start:stop],
            prompt_logprobs=self.prompt_logprobs if start == 0 else None,
        )


class NotComputed(Enum):
    """Reasons why a step did not compute a request of its plan in the plan's turn.

    Attributes:
        LOST: Blocks of others that the request reads have no content. It has no result and must be
            computed anew.
        LATE: A part of the step failed. The request was computed when the result was asked for:
            plans that had begun by then have read what was there before. It has a result.
        DROPPED: A request arrived that took the step's place. No row of the request was computed;
            only requests among the plan's ``abortable_ids`` are dropped.
    """

    LOST = "lost"
    LATE = "late"
    DROPPED = "dropped"


@dataclass(slots=True)
class StepOutput:
    """The result of one step.

    Attributes:
        results: Results by request id, of forked children too; sequences without one had a part of
            their prompt computed.
        sample_seconds: Part of the step's time that was spent on choosing tokens.
        propose_seconds: Part of the step's time that was spent on proposing tokens.
        num_masked_pairs: Pairs of tokens that attention leaves out because a tree's rows see their
            own paths only; as chains they would see all proposed tokens before them.
        draft_work: Work of the drafters, estimated.
        not_computed: Requests of the plan that were not computed in its turn, with the reason of
            each.
        lost_block_ids: Blocks that the step was to load and could not.
    """

    results: dict[str, SequenceResult] = field(default_factory=dict)
    sample_seconds: float = 0.0
    propose_seconds: float = 0.0
    num_masked_pairs: int = 0
    draft_work: ForwardWork = field(default_factory=ForwardWork)
    not_computed: dict[str, NotComputed] = field(default_factory=dict)
    lost_block_ids: list[int] = field(default_factory=list)

    def ids(self, reason: NotComputed) -> frozenset[str]:
        """Return the requests that were not computed in the plan's turn for this reason."""
        if not self.not_computed:
            return frozenset()
        return frozenset(name for name, found in self.not_computed.items() if found is reason)

    def add(self, part: StepOutput) -> None:
        """Take in what a part of the step brought."""
        self.results |= part.results
        self.sample_seconds += part.sample_seconds
        self.propose_seconds += part.propose_seconds
        self.num_masked_pairs += part.num_masked_pairs
        self.draft_work.add(part.draft_work)

    def result(self, request_id: str) -> SequenceResult:
        """Return the result of a sequence to be filled in; a new one when it has none yet."""
        return self.results.setdefault(request_id, SequenceResult())
