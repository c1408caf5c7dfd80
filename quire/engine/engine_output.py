"""The engine's report on one sequence after a step, in tokens; text is made of it elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.outputs import RequestMetrics
from quire.core.step import SequenceResult
from quire.engine.request import Request


@dataclass(slots=True)
class EngineOutput:
    """A sequence's part of a step; the one with ``finish_reason`` is its last.

    Attributes:
        request_id: The caller's id.
        index: Index of the sequence among the request's ``n``.
        result: The step's result, cut at the sequence's end: a stop token is the last one.
            Entries of prompt tokens have no gaps and are reported once (index 0 only).
        num_cached_tokens: Prompt tokens found in the prefix cache.
        metrics: Times of the sequence; the object lives on and changes with later steps.
        finish_reason: ``stop``, ``length``, ``abort``, ``timeout`` or ``error``; None while
            the sequence lives.
        stop_reason: The stop token id that ended it.
    """

    request_id: str
    index: int
    result: SequenceResult
    num_cached_tokens: int
    metrics: RequestMetrics
    finish_reason: str | None = None
    stop_reason: int | None = None

    @classmethod
    def of(
        cls,
        request: Request,
        result: SequenceResult,
        finish_reason: str | None = None,
        stop_reason: int | None = None,
    ) -> EngineOutput:
        """Report what a step brought for a sequence."""
        return cls(
            request.group_id,
            request.index,
            result,
            request.num_cached_tokens,
            request.metrics,
            finish_reason,
            stop_reason,
        )
