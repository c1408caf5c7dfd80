"""Rates of rounds as medians with their spread, and next to a reference's of the same rounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any


def rate_figures(rates: Sequence[float], reference: Sequence[float]) -> dict[str, Any]:
    """Return tokens a second of the rounds, and how many times the reference's they are.

    Ratios are those of each round's two rates, so that a busy moment of the machine hits both.

    Args:
        rates, reference: Tokens a second of the rounds in their order, at least one.
    """
    ratios = [own / other for own, other in zip(rates, reference, strict=True)]
    return {**_spread(rates), "ratio": _spread(ratios)}


def _spread(values: Sequence[float]) -> dict[str, Any]:
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "rounds": list(values),
    }
