"""The check that all producers make of weights."""

from __future__ import annotations

import numpy as np

from quire.core.errors import ModelLoadError


def check_finite(name: str, weight: np.ndarray) -> None:
    """Refuse a matrix with a weight that is not finite.

    Args:
        name: The matrix's name, for the message.
        weight: Weights, of any shape.

    Raises:
        ModelLoadError: A weight is infinite or NaN.
    """
    if not np.isfinite(weight).all():
        raise ModelLoadError(
            f"[quantize] {name}: weights must be finite; got infinity or NaN. Look at the "
            "checkpoint."
        )
