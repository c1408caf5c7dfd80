"""Weights of each weight's error in the search for blocks of GGUF's types."""

from __future__ import annotations

import numpy as np


def error_weights(blocks: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
    """Return (B, E) float32: the importance, and all alike in blocks where it is 0 throughout.

    Without an importance large weights count more: the root mean square of the block plus the
    weight's size.

    Args:
        blocks: (B, E) float32, finite.
        importance: (B, E) float32 >= 0, mean squares of inputs, or None.

    Source: the latter is ggml's ``quantize_row_q4_K_impl``.
    """
    if importance is None:
        spread = np.sqrt(np.float32(2) * (blocks * blocks).mean(axis=1, keepdims=True))
        importance = spread + np.abs(blocks)
    nothing = ~importance.any(axis=1, keepdims=True)
    counted: np.ndarray = np.where(nothing, np.float32(1), importance)
    return counted
