"""95% intervals of means, shares and paired differences over windows; it computes no model.

Windows are the independent unit: tokens of one window share their text and their context. Means
are ratios of sums, so that windows of unequal length count by their tokens. Their intervals are
t-intervals over windows, with the variance of a ratio estimator (no resampling, so no seed), and
shares have Wilson's interval for as many independent trials as the windows amount to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

#: The normal distribution's two-sided quantile of 95%.
Z = 1.959963984540054
#: From that many degrees of freedom on, Student's distribution is the normal one to four digits.
MANY = 10_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95% interval.

    Attributes:
        value: The figure.
        low, high: The interval; None where there are too few units for one.
    """

    value: float
    low: float | None = None
    high: float | None = None

    def map(self, function: Callable[[float], float]) -> Estimate:
        """Return the estimate of an increasing function of the figure."""
        if self.low is None or self.high is None:
            return Estimate(function(self.value))
        return Estimate(function(self.value), function(self.low), function(self.high))

    def clipped(self, least: float) -> Estimate:
        """Return it with an interval that goes no lower than a figure can."""
        if self.low is None:
            return self
        return Estimate(self.value, max(least, self.low), self.high)


def mean_interval(sums: Sequence[float], counts: Sequence[int]) -> Estimate:
    """Return ``sum(sums) / sum(counts)`` with its t-interval over windows.

    ``se^2 = W / (W - 1) * sum_i (sums_i - mean * counts_i)^2 / sum(counts)^2`` of W windows.

    Args:
        sums: Sum over each window's tokens.
        counts: Tokens of each window, at least 1.

    Returns:
        The mean, with an interval where there are two windows or more.
    """
    totals, sizes = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
    assert len(totals) == len(sizes) > 0, (len(totals), len(sizes))
    mean = float(totals.sum() / sizes.sum())
    if len(totals) < 2:
        return Estimate(mean)
    half = t_quantile(len(totals) - 1) * _standard_error(totals, sizes, mean)
    return Estimate(mean, mean - half, mean + half)


def share_interval(hits: Sequence[float], counts: Sequence[int]) -> Estimate:
    """Return the share of tokens that are hits, with Wilson's interval over windows.

    The variance between windows says how many independent tokens the windows amount to, at most
    as many as there are; where every token is a hit, or none, that many. The quantile is Student's.

    Args:
        hits: Hits of each window.
        counts: Tokens of each window, at least 1.
    """
    totals, sizes = np.asarray(hits, np.float64), np.asarray(counts, np.float64)
    share = float(totals.sum() / sizes.sum())
    if len(totals) < 2:
        return Estimate(share)
    effective = float(sizes.sum())
    variance = _standard_error(totals, sizes, share) ** 2
    if variance > 0:
        effective = min(effective, share * (1 - share) / variance)
    return _wilson(share, effective, t_quantile(len(totals) - 1))


def wilson_interval(hits: int, total: int) -> Estimate:
    """Return the share ``hits / total`` of independent trials with Wilson's interval.

    Source: Wilson 1927.
    """
    assert 0 <= hits <= total > 0, (hits, total)
    return _wilson(hits / total, total, Z)


def paired_difference(more: int, less: int, total: int) -> Estimate:
    """Return the difference of two shares of the same trials, with Agresti and Min's interval.

    Half a trial is added to each of the four outcomes, so that trials without a difference have an
    interval, too.

    Args:
        more: Trials that hit in the first way only.
        less: Trials that hit in the second way only.
        total: All trials.

    Source: Agresti and Min 2005.
    """
    assert more >= 0 <= less and more + less <= total > 0, (more, less, total)
    first, second, size = more + 0.5, less + 0.5, total + 2
    centre = (first - second) / size
    half = Z * math.sqrt(first + second - (first - second) ** 2 / size) / size
    return Estimate((more - less) / total, max(-1.0, centre - half), min(1.0, centre + half))


def t_quantile(degrees: int) -> float:
    """Return Student's two-sided 95% quantile.

    ``P(|T| < t)`` of whole degrees of freedom is a finite sum; its inverse is found by bisection.

    Source: Abramowitz and Stegun 1964, 26.7.3 and 26.7.4.
    """
    assert degrees >= 1, degrees
    if degrees >= MANY:
        return Z
    low, high = 0.0, 13.0  # 12.706 is the largest: of one degree
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < 0.95 else (low, middle)
    return (low + high) / 2


def _within(t: float, degrees: int) -> float:
    """Return ``P(|T| < t)``."""
    angle = math.atan2(t, math.sqrt(degrees))
    cosine = math.cos(angle)
    odd = degrees % 2
    if degrees == 1:
        return 2 * angle / math.pi
    term = total = cosine if odd else 1.0
    for k in range(2 + odd, degrees - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def _standard_error(totals: np.ndarray, sizes: np.ndarray, mean: float) -> float:
    count = len(totals)
    spread = float(((totals - mean * sizes) ** 2).sum())
    return math.sqrt(count / (count - 1) * spread) / float(sizes.sum())


def _wilson(share: float, trials: float, quantile: float) -> Estimate:
    square = quantile**2 / trials
    centre = (share + square / 2) / (1 + square)
    half = math.sqrt(square * share * (1 - share) + square**2 / 4) / (1 + square)
    # Rounding must not leave the share itself out where it is 0 or 1.
    return Estimate(share, min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half)))
