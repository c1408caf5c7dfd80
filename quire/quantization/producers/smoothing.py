"""SmoothQuant's scales of columns: outliers of inputs become a part of the weights.

``s = max|x| ** strength / max|w| ** (1 - strength)`` for each column; inputs are divided by it and
weights multiplied. N rows (outputs), K columns (inputs) of a matrix.

Source: SmoothQuant (Xiao et al. 2023).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: Smaller scales would make rows before them too large, as SmoothQuant's authors have it.
SMALLEST = 1e-5


def smoothing_scales(
    weights: Sequence[np.ndarray], largest: np.ndarray, strength: float
) -> np.ndarray:
    """Return the scales of columns, (K,) float32; 1 where inputs or weights are all 0.

    Args:
        weights: (N, K) float32, all that have these inputs.
        largest: (K,) largest absolute values of the inputs.
        strength: Share of the range of inputs that goes over to the weights, 0 to 1.
    """
    of_weights = np.max([np.abs(weight).max(axis=0) for weight in weights], axis=0)
    used = (largest > 0) & (of_weights > 0)
    scales = np.ones(len(largest))
    scales[used] = largest[used] ** strength / of_weights[used] ** (1 - strength)
    return np.maximum(scales, SMALLEST).astype(np.float32)
