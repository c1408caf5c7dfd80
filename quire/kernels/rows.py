"""Ops that pick rows of a table or place columns: their definition and the checks.

``add_rows``: ``x[t] += table[rows[t]]`` in place, for x (T, D) and table (P, D) float32.
``gather_rows``: ``out[i] = x[rows[i]]`` for x (T, D), rows (L,) int32 and out (L, D).
``scatter_rows``: ``out[rows[i]] = x[i]`` for x (L, D), rows (L,) int32 and out (T, D).
``spread_columns``: ``out[:, columns[i]] = x[:, i]``, -inf elsewhere, for x (L, W), columns (W,)
int32 and out (L, V).
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


def check_columns(x: Array, columns: Array, out: Array) -> None:
    """Refuse ``out`` of other rows than ``x``, or not one index for each column of ``x``.

    Raises:
        UnsupportedInputError: Shapes disagree. Indices are checked where they are used.
    """
    if tuple(x.shape) != (out.shape[0], *columns.shape):
        raise UnsupportedInputError(
            f"[spread_columns] x must have shape ({out.shape[0]}, {columns.shape[0]}), a column "
            f"for each index; got {tuple(x.shape)}."
        )


def refuse_row(op: str, count: int, what: str = "rows") -> UnsupportedInputError:
    """Return the error for an index outside a table of ``count`` rows, or columns."""
    return UnsupportedInputError(
        f"[{op}] {what} must be in [0, {count}); got at least one outside."
    )
