"""Figures of logits' rows and the tokens that follow: losses, divergence, agreement.

L rows, V vocabulary. Exponentials are float32 of logits less their row's largest, sums float64.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quire.core.errors import QuireError

#: Columns of :func:`compare_rows`.
LOSS, REFERENCE_LOSS, DIVERGENCE, AGREEMENT = range(4)
#: Logits that are read several times in a row.
BLOCK_BYTES = 2**19


def loss_rows(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the loss of each row's next token.

    ``loss[l] = log(sum_v exp(logits[l, v])) - logits[l, targets[l]]``.

    Args:
        logits: (L, V) float32, L at least 1.
        targets: (L,) token ids.

    Returns:
        (L, 1) float64, nats.

    Raises:
        QuireError: A row is not finite.
    """
    parts = []
    for rows in _blocks(logits):
        _, own = _exponentials(logits[rows])
        parts.append(own - _logits_of(logits[rows], targets[rows]))
    return np.concatenate(parts)[:, None]


def compare_rows(logits: np.ndarray, reference: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return what rows of two models say of the same next tokens.

    ``divergence[l] = sum_v q[l, v] * (log q[l, v] - log p[l, v])`` with q the reference's
    distribution: Kullback-Leibler of the model from its reference. A row agrees where both find the
    same token the most likely, of equals the first.

    Args:
        logits, reference: (L, V) float32, L at least 1.
        targets: (L,) token ids.

    Returns:
        (L, 4) float64: loss, the reference's loss and divergence in nats; agreement, 0 or 1.

    Raises:
        QuireError: A row is not finite.
    """
    parts = [_compare(logits[rows], reference[rows], targets[rows]) for rows in _blocks(logits)]
    return np.concatenate(parts)


def _compare(logits: np.ndarray, reference: np.ndarray, targets: np.ndarray) -> np.ndarray:
    _, own = _exponentials(logits)
    weights, other = _exponentials(reference)
    sums = weights.sum(axis=-1, dtype=np.float64)
    weights *= reference - logits
    gap = weights.sum(axis=-1, dtype=np.float64) / sums
    return np.stack(
        [
            own - _logits_of(logits, targets),
            other - _logits_of(reference, targets),
            gap + own - other,
            logits.argmax(axis=-1) == reference.argmax(axis=-1),
        ],
        axis=1,
    )


def _blocks(logits: np.ndarray) -> Iterator[slice]:
    """Yield rows, at least one, that lie in a core's cache with what is made of them."""
    size = max(1, BLOCK_BYTES // (4 * logits.shape[1]))
    for begin in range(0, len(logits), size):
        yield slice(begin, begin + size)


def _exponentials(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (L, V) exponentials of logits less their row's largest, and (L,) normalizers.

    A normalizer is the logarithm of the sum of the logits' own exponentials, float64.
    """
    largest = logits.max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):  # infinite logits are refused below
        weights = logits - largest
    np.exp(weights, out=weights)
    found: np.ndarray = np.log(weights.sum(axis=-1, dtype=np.float64))
    found += largest[:, 0]
    if not np.isfinite(found).all():
        raise QuireError(
            "[eval] logits must be finite; got others. The checkpoint is damaged, or overflows in "
            "its --dtype."
        )
    return weights, found


def _logits_of(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    chosen: np.ndarray = logits[np.arange(len(targets)), targets].astype(np.float64)
    return chosen
