"""Ops that pick rows of a table: their definition and the checks.

``add_rows``: ``x[t] += table[rows[t]]`` in place, for x (T, D) and table (P, D) float32.
``gather_rows``: ``out[i] = x[rows[i]]`` for x (T, D), rows (L,) int32 and out (L, D).
``scatter_rows``: ``out[rows[i]] = x[i]`` for x (L, D), rows (L,) int32 and out (T, D).
"""

from __future__ import annotations

from quire.core.errors import UnsupportedInputError
from quire.kernels.backend import Array


def check(op: str, table: Array, rows: Array, out: Array) -> None:
    """Refuse ``out`` that is not one row of ``table`` for each index in ``rows``.

    Raises:
        UnsupportedInputError: Shapes disagree. Indices are checked where they are used.
    """
    if len(table.shape) != 2 or tuple(out.shape) != (*rows.shape, table.shape[1]):
        raise UnsupportedInputError(
            f"[{op}] rows must have shape (L,) and results (L, {table.shape[-1]}); "
            f"got {tuple(rows.shape)} and {tuple(out.shape)}."
        )


def refuse_row(op: str, num_rows: int) -> UnsupportedInputError:
    """Return the error for an index outside a table of ``num_rows``."""
    return UnsupportedInputError(
        f"[{op}] rows must be in [0, {num_rows}); got at least one outside."
    )
