"""What a request gives back, in the shapes of vLLM's Python API; nothing about transport."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Logprob(NamedTuple):
    """Log-probability of one token at one position.

    Attributes:
        logprob: Natural logarithm, from the raw logits (before penalties and temperature).
        rank: 1 for the most likely token of the vocabulary.
        decoded_token: The token as text, or None when not detokenized.
    """

    logprob: float
    rank: int
    decoded_token: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One of a request's ``n`` sequences, complete or so far.

    Attributes:
        index: 0 to n-1.
        text: Everything generated so far, stop string removed.
        token_ids: Everything generated so far; the end-of-sequence token is included.
        logprobs: Per output token ``{token_id: Logprob}``, or None when not asked for.
        cumulative_logprob: Sum over the sampled tokens, or None when not asked for.
        finish_reason: ``stop``, ``length``, ``abort``, ``timeout`` or ``error``; None while
            running.
        stop_reason: The stop string or stop token id that ended it, None for end-of-sequence.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request on the monotonic clock, in seconds; 0.0 means not yet."""

    arrival_time: float = 0.0
    first_scheduled_time: float = 0.0
    first_token_time: float = 0.0
    last_token_time: float = 0.0
    num_preemptions: int = 0


@dataclass(slots=True)
class RequestOutput:
    """A request's state after a step; the last one has ``finished`` set.

    Attributes:
        request_id: The caller's id.
        prompt: The prompt as text, or None when it was given as token ids.
        prompt_token_ids: The prompt as the model saw it.
        prompt_logprobs: Per prompt token ``{token_id: Logprob}``, None for the first.
        outputs: ``n`` sequences, ordered by index.
        finished: No further output follows.
        num_cached_tokens: Prompt tokens that were found in the prefix cache.
        metrics: Times of the request.
        error: What went wrong when a finish reason is ``error``.
        embedding: (D,) float32 little-endian of length 1, when ``pooling`` was asked for.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    error: str | None = None
    embedding: bytes | None = None
