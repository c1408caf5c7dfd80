"""Whether blocks are loaded or computed again: the cheaper of the two; pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence


def num_worth_loading(
    load_seconds: Sequence[float], start_seconds: float, compute_seconds: float
) -> int:
    """Return how many leading blocks of a chain to load, so that all of it is there soonest.

    ``j`` that minimizes ``[j > 0] * start_seconds + sum(load_seconds[:j]) + (n - j) *
    compute_seconds``; the largest one of several.

    Args:
        load_seconds: Seconds to load each block, in the order of the chain.
        start_seconds: Seconds that pass before the first block arrives.
        compute_seconds: Seconds to compute a block again.
    """
    best, least, seconds = 0, 0.0, start_seconds
    for count, own in enumerate(load_seconds, start=1):
        seconds += own - compute_seconds
        if seconds <= least:
            best, least = count, seconds
    return best
