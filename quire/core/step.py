"""The messages between scheduling and execution: a step's plan and its result; plain data.

``engine`` writes :class:`SchedulerOutput` and reads :class:`StepOutput`; ``runner`` does the
opposite. The runner keeps each request's tokens and block table, so a plan carries only news.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.core.sampling_params import SamplingParams


@dataclass(slots=True)
class NewRequest:
    """A request the runner has not seen, or one that was preempted and starts over.

    Attributes:
        request_id: Unique among live requests.
        token_ids: Prompt, and for a resumed request the output so far behind it.
        num_prompt_tokens: How many of ``token_ids`` are prompt.
        params: Sampling settings with ``n`` already expanded (each sequence is a request).
        seed: Seed of the sequence's random draws, resolved (never None).
        block_ids: The whole block table for this step.
        num_computed_tokens: Leading tokens whose KV is already in those blocks.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    block_ids: list[int]
    num_computed_tokens: int


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
        new_block_ids: Appended to the request's block table before the step; empty for a new
            request, whose table came whole. May hold blocks with computed tokens (prefix hits).
        samples: Whether the step reaches the last known token, so that a token is sampled; never
            when the request asks for an embedding.
    """

    request_id: str
    num_computed_tokens: int
    num_scheduled_tokens: int
    new_block_ids: list[int]
    samples: bool


@dataclass(slots=True)
class SchedulerOutput:
    """The plan of one step.

    A request may read blocks that another request of the same step fills (a shared prefix), so each
    layer writes the KV of all rows before any row reads.

    Attributes:
        new_requests: Sent once, before the request's first appearance in ``scheduled``.
        scheduled: Requests of this step in batch order.
        forks: Sequences that split off at the end of this step; the parent is in ``scheduled``
            with ``samples`` set.
        finished_request_ids: Ended or preempted since the last plan; the runner forgets them first.
        block_copies: ``(source, destination)`` block ids, copied before anything is computed.
        replaced_blocks: ``(request_id, index, block_id)``: the entry of a block table that changes
            because a shared block was copied on write.
        sealed_blocks: Blocks that this step fills and that others may then find by their content;
            listed, as ``reused_blocks``, only for a KV canary.
        reused_blocks: ``(request_id, block_ids)`` found by content and not computed again.
    """

    new_requests: list[NewRequest] = field(default_factory=list)
    scheduled: list[ScheduledRequest] = field(default_factory=list)
    forks: list[Fork] = field(default_factory=list)
    finished_request_ids: list[str] = field(default_factory=list)
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    replaced_blocks: list[tuple[str, int, int]] = field(default_factory=list)
    sealed_blocks: list[int] = field(default_factory=list)
    reused_blocks: list[tuple[str, list[int]]] = field(default_factory=list)

    @property
    def num_scheduled_tokens(self) -> int:
        """Tokens of the whole step."""
        return sum(request.num_scheduled_tokens for request in self.scheduled)


@dataclass(slots=True)
class TokenLogprobs:
    """Log-probabilities at one position.

    Attributes:
        token_id: The sampled (or given) token.
        logprob: Its natural logarithm, from raw logits.
        rank: Its 1-based rank in the vocabulary.
        top: ``(token_id, logprob)`` of the most likely tokens, best first.
    """

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


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
class StepOutput:
    """The result of one step.

    Attributes:
        sampled: Request id (of forked children too) to its next tokens: one drawn in this step,
            then those its grammar leaves no choice about, which the model has not seen yet. Some
            may lie behind the sequence's end.
        logprobs: Request id to the drawn token's entry, for requests that asked; these get no
            tokens that were not drawn.
        prompt_logprobs: Request id to entries about the prompt tokens ``start, start + 1, ...``
            whose predecessors were computed in this step, for requests that asked. After a
            preemption entries come again, equal to the first ones.
        errors: Request id to the reason why this request alone must end.
        embeddings: Request id to its vector, (D,) float32 little-endian of length 1, for requests
            with ``pooling`` whose prompt this step has ended.
        sample_seconds: Of the step's time, spent on choosing tokens.
    """

    sampled: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[str, PromptLogprobs] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    embeddings: dict[str, bytes] = field(default_factory=dict)
    sample_seconds: float = 0.0
