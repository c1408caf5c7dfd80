"""The end of a sequence by its tokens; stop strings belong to text."""

from __future__ import annotations

from collections.abc import Container

from quire.engine.request import Request


def check_stop(request: Request, eos_token_ids: Container[int]) -> tuple[str, int | None] | None:
    """Return ``(finish_reason, stop_reason)`` when the request's last token ends it, else None.

    ``stop_reason`` is the matching entry of ``stop_token_ids``; None for end-of-sequence and for
    length. Before ``min_tokens`` only the length ends a sequence.

    Args:
        request: A sequence with at least one output token.
        eos_token_ids: The model's end-of-sequence ids.
    """
    params, token_id = request.params, request.token_ids[-1]
    if request.num_output_tokens >= params.min_tokens:
        if token_id in eos_token_ids and not params.ignore_eos:
            return "stop", None
        if token_id in request.stop_token_ids:
            return "stop", token_id
    if len(request.token_ids) >= request.max_total_tokens:
        return "length", None
    return None
