"""Cuts of prompts between steps, none inside a picture whose rows see those after them.

A step computes such rows together. A step may begin inside a picture: the rows before have their
KV in the cache, and saw all of the picture when they were computed.
"""

from __future__ import annotations

from quire.engine.request import Request


def tokens_of_whole_pictures(request: Request, start: int, num_tokens: int, most: int) -> int:
    """Return how many tokens of a request to compute in a step, so that no picture is cut.

    Args:
        request: The request, with or without pictures.
        start: Number of its tokens that are computed or found in the cache.
        num_tokens: Number of tokens that it may have otherwise; with 0 it gets none.
        most: Number of tokens that the step has room for.

    Returns:
        ``num_tokens``; less, up to the beginning of a picture; more, up to the end of one that is
        the first thing to be computed; 0 when the step has no room for that.
    """
    end = start + num_tokens
    for picture in request.source.pictures:
        stop = picture.start + picture.num_tokens
        if num_tokens and picture.sees_ahead and picture.start < end < stop:
            if picture.start > start:
                return picture.start - start
            return stop - start if stop - start <= most else 0
    return num_tokens
