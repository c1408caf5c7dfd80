"""Ops on each element alone: definitions and checks.

``scale``: ``out = factor * x``. ``soft_cap``: ``out = cap * tanh(x / cap)``, which bends values
towards ``-cap .. cap``. ``add_residual``: ``residual += x``, and ``out``, where given, is a copy of
it. All (T, D) float32 of one shape; ``out`` may be ``x``.

Source: Gemma Team 2024 (Gemma 2) for soft caps.
"""

from __future__ import annotations

from quire.core.errors import UnsupportedInputError
from quire.kernels.backend import Array


def check(op: str, *rows: Array | None) -> None:
    """Refuse rows that are not all of one (T, D).

    Raises:
        UnsupportedInputError: Shapes disagree.
    """
    shapes = [tuple(array.shape) for array in rows if array is not None]
    if len(shapes[0]) != 2 or len(set(shapes)) > 1:
        raise UnsupportedInputError(f"[{op}] rows must all have one shape (T, D); got {shapes}.")
