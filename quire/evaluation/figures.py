"""The figures of a report, each with its interval, from the losses of windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quire.evaluation.distributions import AGREEMENT, DIVERGENCE, LOSS, REFERENCE_LOSS
from quire.evaluation.intervals import Estimate, mean_interval, share_interval

#: Where buckets of positions end; further ones are four times as long each.
BUCKET_ENDS = (256, 1024)
#: Beyond, the exponential is no float any more.
MAX_EXPONENT = 700.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """A model next to its reference, on the same tokens.

    Attributes:
        perplexity, reference_perplexity: Perplexities of the model and of its reference.
        ratio: Ratio of the perplexities, paired: the interval is that of the windows' differences.
        divergence: Kullback-Leibler of the model from its reference, nats a token.
        divergence_p99: Divergence that 1 token in 100 exceeds.
        agreement: Share of tokens for which both find the same one the most likely.
    """

    perplexity: Estimate
    reference_perplexity: Estimate
    ratio: Estimate
    divergence: Estimate
    divergence_p99: float
    agreement: Estimate


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tokens by how many are before them in their window.

    Attributes:
        begin, end: Numbers of tokens before; ``end`` is not in the bucket.
        num_tokens: Tokens counted.
        loss: Nats a token.
        perplexity: Exponential of the loss.
    """

    begin: int
    end: int
    num_tokens: int
    loss: Estimate
    perplexity: Estimate


def mean_loss(losses: Sequence[np.ndarray]) -> Estimate:
    """Return the mean loss of all tokens, with a t-interval over windows."""
    return mean_interval([float(part.sum()) for part in losses], [len(part) for part in losses])


def perplexity(losses: Sequence[np.ndarray]) -> Estimate:
    """Return the exponential of the mean loss, and of the ends of its t-interval over windows.

    Args:
        losses: (count,) nats of each window's counted tokens, at least one each.
    """
    return mean_loss(losses).map(_exp)


def compare(tables: Sequence[np.ndarray]) -> Comparison:
    """Return the figures of two models.

    Args:
        tables: (count, 4) of each window, columns as of
            :func:`~quire.evaluation.distributions.compare_rows`.
    """
    own, other = ([table[:, column] for table in tables] for column in (LOSS, REFERENCE_LOSS))
    gaps = [table[:, LOSS] - table[:, REFERENCE_LOSS] for table in tables]
    divergences = [table[:, DIVERGENCE] for table in tables]
    hits = [float(table[:, AGREEMENT].sum()) for table in tables]
    return Comparison(
        perplexity=perplexity(own),
        reference_perplexity=perplexity(other),
        ratio=perplexity(gaps),
        divergence=mean_loss(divergences).clipped(0.0),
        divergence_p99=float(np.quantile(np.concatenate(divergences), 0.99)),
        agreement=share_interval(hits, [len(table) for table in tables]),
    )


def by_position(losses: Sequence[np.ndarray], firsts: Sequence[int]) -> list[Bucket]:
    """Return the mean loss by the number of tokens before one, as far as there are tokens.

    Args:
        losses: (count,) nats of each window's counted tokens.
        firsts: Position of the first of them in its window.
    """
    longest = max(first + len(part) for part, first in zip(losses, firsts, strict=True))
    buckets, begin = [], 0
    for end in _bucket_ends(longest):
        parts = [
            part[max(begin - first, 0) : max(end - first, 0)]
            for part, first in zip(losses, firsts, strict=True)
        ]
        parts = [part for part in parts if len(part)]
        if parts:
            loss = mean_loss(parts)
            num_tokens = sum(map(len, parts))
            buckets.append(Bucket(begin, end, num_tokens, loss, loss.map(_exp)))
        begin = end
    return buckets


def _bucket_ends(longest: int) -> list[int]:
    ends = list(BUCKET_ENDS)
    while ends[-1] < longest:
        ends.append(4 * ends[-1])
    kept = [end for end in ends if end < longest]
    return [*kept, longest]


def _exp(value: float) -> float:
    return math.exp(min(value, MAX_EXPONENT))
