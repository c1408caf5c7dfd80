"""What the engine reports of one sequence after a step, in tokens; text is made of it elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.outputs import RequestMetrics
from quire.core.step import PromptLogprobs, TokenLogprobs


@dataclass(slots=True)
class EngineOutput:
    """News of one sequence; the one with ``finish_reason`` is its last.

    Attributes:
        request_id: The caller's id.
        index: Which of the request's ``n`` sequences.
        new_token_ids: Sampled in this step, a stop token included.
        num_cached_tokens: Prompt tokens found in the prefix cache.
        metrics: Times of the sequence; the object lives on and changes with later steps.
        logprobs: One per new token, or None when not asked for.
        prompt_logprobs: The next prompt tokens' entries, gapless and each once (index 0 only), or
            None when there are none in this step.
        finish_reason: ``stop``, ``length``, ``abort``, ``timeout`` or ``error``; None while
            it goes on.
        stop_reason: The stop token id that ended it.
        error: What went wrong when ``finish_reason`` is ``error``.
        embedding: As of :class:`quire.core.step.StepOutput`, in the last output.
    """

    request_id: str
    index: int
    new_token_ids: list[int]
    num_cached_tokens: int
    metrics: RequestMetrics
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | None = None
    error: str | None = None
    embedding: bytes | None = None
