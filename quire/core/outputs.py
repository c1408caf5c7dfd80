"""The outputs of a request, in the shapes of vLLM's Python API; nothing about transport."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from quire.core.errors import RequestFailure


class Logprob(msgspec.Struct, frozen=True, gc=False):
    """Log-probability of one token at one position.

    There may be millions: Python's collector of cycles, which has none to find here, takes no look.

    Attributes:
        logprob: Natural logarithm, from the raw logits (before penalties and temperature).
        rank: Rank of the token in the vocabulary, 1 for the most likely.
        decoded_token: The token as text, or None when not detokenized.
    """

    logprob: float
    rank: int
    decoded_token: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One of a request's ``n`` sequences: complete, so far, or what is new of it.

    Attributes:
        index: Index of the sequence among the request's ``n``, 0 to n-1.
        text: The generated text, stop string removed.
        token_ids: The generated tokens; the end-of-sequence token is included.
        logprobs: Log-probabilities ``{token_id: Logprob}`` for each output token, or None when not
            asked for.
        cumulative_logprob: Sum of the log-probabilities of all tokens sampled so far, or None when
            not asked for.
        finish_reason: ``stop``, ``length``, ``abort``, ``timeout`` or ``error``; None while
            running.
        stop_reason: The stop string or stop token id that ended it, None for end-of-sequence.
        token_origins: Origin of each output token: the method that proposed it (``ngram``, ...),
            ``model`` where the model drew it, ``grammar`` where a grammar left no choice; None when
            not asked for.
        num_rejected_tokens: Number of proposed tokens that did not hold; 0 when origins are not
            asked for.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_origins: list[str] | None = None
    num_rejected_tokens: int = 0

    def merge(self, newer: CompletionOutput) -> None:
        """Append the delta that follows this one."""
        # While nothing else holds the text, CPython appends in place: no copy of it per delta.
        text, self.text = self.text, ""
        text += newer.text
        self.text = text
        self.token_ids += newer.token_ids
        if self.logprobs is not None and newer.logprobs is not None:
            self.logprobs += newer.logprobs
        if self.token_origins is not None and newer.token_origins is not None:
            self.token_origins += newer.token_origins
        self.num_rejected_tokens += newer.num_rejected_tokens
        self.cumulative_logprob = newer.cumulative_logprob
        self.finish_reason, self.stop_reason = newer.finish_reason, newer.stop_reason


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request on the monotonic clock, in seconds; 0.0 means not yet."""

    arrival_time: float = 0.0
    first_scheduled_time: float = 0.0
    first_token_time: float = 0.0
    last_token_time: float = 0.0
    num_preemptions: int = 0

    def copy(self) -> RequestMetrics:
        """Return the times as they are now; ``dataclasses.replace`` takes three times as long."""
        return RequestMetrics(
            self.arrival_time,
            self.first_scheduled_time,
            self.first_token_time,
            self.last_token_time,
            self.num_preemptions,
        )


@dataclass(slots=True)
class RequestOutput:
    """A request's state after a step, or what is new of it; the last one has ``finished`` set.

    Which of the two, ``SamplingParams.output_kind`` says. Deltas are the reader's own: nothing else
    holds their lists, but for ``prompt_token_ids``, which all outputs of a request share.

    Attributes:
        request_id: The caller's id.
        prompt: The prompt as text, or None when it was given as token ids.
        prompt_token_ids: The prompt as the model saw it.
        prompt_logprobs: Log-probabilities ``{token_id: Logprob}`` for each prompt token, None for
            the first.
        outputs: The ``n`` sequences, ordered by index; of a delta, those that have something new.
        finished: Whether this is the last output.
        num_cached_tokens: Prompt tokens that were found in the prefix cache.
        metrics: Times of the request.
        failure: The failure when a finish reason is ``error``.
        embedding: The vector (D,), or the logits of classes (C,), float32 little-endian, when
            ``pooling`` was asked for.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    failure: RequestFailure | None = None
    embedding: bytes | None = None

    @property
    def error(self) -> str | None:
        """Message of what went wrong when a finish reason is ``error``."""
        return None if self.failure is None else self.failure.message

    def merge(self, newer: RequestOutput) -> None:
        """Append the delta that follows this one: all deltas merged are the whole output."""
        completions = {completion.index: completion for completion in self.outputs}
        for completion in newer.outputs:
            known = completions.get(completion.index)
            if known is None:
                self.outputs.append(completion)
                self.outputs.sort(key=lambda one: one.index)
            else:
                known.merge(completion)
        if self.prompt_logprobs is not None and newer.prompt_logprobs is not None:
            self.prompt_logprobs += newer.prompt_logprobs
        self.finished = newer.finished
        self.num_cached_tokens = newer.num_cached_tokens
        self.metrics = newer.metrics
        self.failure, self.embedding = newer.failure, newer.embedding
