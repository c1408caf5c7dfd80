"""What rows of logits say of the tokens that follow: losses, divergence, agreement.

L rows, V vocabulary. Exponentials are float32 of logits less their row's largest, sums float64.
"""

from __future__ import annotations

import numpy as np

from quire.core.errors import QuireError

#: Columns of :func:`compare_rows`.
LOSS, REFERENCE_LOSS, DIVERGENCE, AGREEMENT = range(4)


def loss_rows(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the loss of each row's next token.

    ``loss[l] = log(sum_v exp(logits[l, v])) - logits[l, targets[l]]``.

    Args:
        logits: (L, V) float32.
        targets: (L,) token ids.

    Returns:
        (L, 1) float64, nats.

    Raises:
        QuireError: A row is not finite.
    """
    losses: np.ndarray = _normalizers(logits) - _logits_of(logits, targets)
    return losses[:, None]


def compare_rows(logits: np.ndarray, reference: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return what rows of two models say of the same next tokens.

    ``divergence[l] = sum_v q[l, v] * (log q[l, v] - log p[l, v])`` with q the reference's
    distribution: Kullback-Leibler of the model from its reference. A row agrees where both find the
    same token the most likely, of equals the first.

    Args:
        logits, reference: (L, V) float32.
        targets: (L,) token ids.

    Returns:
        (L, 4) float64: loss, the reference's loss and divergence in nats; agreement, 0 or 1.

    Raises:
        QuireError: A row is not finite.
    """
    own, other = _normalizers(logits), _normalizers(reference)
    weights = np.exp(reference - reference.max(axis=-1, keepdims=True))
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


def _normalizers(logits: np.ndarray) -> np.ndarray:
    """Return (L,) float64 logarithms of the sums of exponentials."""
    largest = logits.max(axis=-1, keepdims=True)
    sums = np.exp(logits - largest).sum(axis=-1, dtype=np.float64)
    found: np.ndarray = np.log(sums) + largest[:, 0].astype(np.float64)
    if not np.isfinite(found).all():
        raise QuireError(
            "[eval] logits must be finite; got others. The checkpoint is damaged, or overflows in "
            "its --dtype."
        )
    return found


def _logits_of(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    chosen: np.ndarray = logits[np.arange(len(targets)), targets].astype(np.float64)
    return chosen
