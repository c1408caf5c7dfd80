"""Codes that are looked up in a table of their row, and values added to single weights.

``value[n, k] = table[n, codes[n, k]]``, plus outliers: for each row some columns and what their
values are more than that. Rows of outliers lie one after the other, as in a compressed sparse row
matrix; a column may come more than once.

Where activations are rounded to 8 bits, so are tables: to 1 / 127 of a row's largest value.
Outliers are multiplied as they are, with activations as they are, and added last.

Source: SqueezeLLM (Kim et al. 2023), its dense-and-sparse decomposition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quire.core.errors import UnsupportedInputError

#: Bits of a code that kernels look up.
TABLE_BITS = (3, 4)
#: Columns come in multiples of this.
TABLE_COLUMNS = 32
#: Types that tables are held in.
TABLE_TYPES = ("float16", "float32")


@dataclass(frozen=True, slots=True)
class Outliers:
    """Values added to some of the weights of a matrix of N rows and K columns.

    Attributes:
        starts: (N + 1,) int32: the index at which each row's values begin, and the end of the last
            row's.
        columns: (count,) int32.
        values: (count,) float32.
    """

    starts: np.ndarray
    columns: np.ndarray
    values: np.ndarray

    @property
    def count(self) -> int:
        """Number of values."""
        return len(self.values)

    @property
    def rows(self) -> np.ndarray:
        """The row of each, (count,)."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def of_rows(self, rows: np.ndarray | slice) -> Outliers:
        """Return those of some rows."""
        starts, counts = self.starts[:-1][rows], np.diff(self.starts)[rows]
        made = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        found = np.arange(made[-1]) + np.repeat(starts - made[:-1], counts)
        return Outliers(made, self.columns[found], self.values[found])

    def of_columns(self, columns: slice) -> Outliers:
        """Return those of neighbouring columns, counted from the first."""
        taken = (self.columns >= columns.start) & (self.columns < columns.stop)
        before = np.concatenate([[0], np.cumsum(taken)])
        starts = before[self.starts].astype(np.int32)
        return Outliers(starts, self.columns[taken] - columns.start, self.values[taken])

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Refuse parts that do not fit together or the matrix.

        Raises:
            UnsupportedInputError: The parts do not fit; the message names the matrix.
        """
        starts, columns = self.starts, self.columns
        parts = (starts, columns, self.values)
        if [part.dtype.name for part in parts] != ["int32", "int32", "float32"]:
            rule = "outliers must be int32 starts and columns and float32 values"
            raise _refuse(name, rule, ", ".join(part.dtype.name for part in parts))
        if starts.shape != (shape[0] + 1,) or columns.shape != (self.count,):
            rule = f"outliers must have {shape[0] + 1} starts and a column for each value"
            raise _refuse(name, rule, ", ".join(str(part.shape) for part in parts))
        if starts[0] != 0 or starts[-1] != self.count or (np.diff(starts) < 0).any():
            raise _refuse(name, f"starts of outliers must go up from 0 to {self.count}", "others")
        if self.count and (columns.min() < 0 or columns.max() >= shape[1]):
            rule = f"columns of outliers must be 0..{shape[1] - 1}"
            raise _refuse(name, rule, f"{columns.min()}..{columns.max()}")
        if not np.isfinite(self.values).all():
            raise _refuse(name, "outliers must be finite", "infinity or NaN")

    def add_to(self, values: np.ndarray) -> None:
        """Add them to (N, K) float32."""
        np.add.at(values, (self.rows, self.columns), self.values)


def check_tables(
    name: str, bits: int, shape: tuple[int, ...], tables: np.ndarray, outliers: Outliers | None
) -> None:
    """Refuse tables that do not fit the codes (N, K) of a matrix.

    Raises:
        UnsupportedInputError: The parts do not fit; the message names the matrix.
    """
    if bits not in TABLE_BITS:
        raise _refuse(name, "bits must be 3 or 4 with tables of rows", bits)
    if shape[1] % TABLE_COLUMNS:
        rule = f"columns must be a multiple of {TABLE_COLUMNS} with tables of rows"
        raise _refuse(name, rule, shape[1])
    if tables.shape != (shape[0], 1 << bits) or tables.dtype.name not in TABLE_TYPES:
        rule = f"tables must be {(shape[0], 1 << bits)} float16 or float32"
        raise _refuse(name, rule, f"{tables.shape} {tables.dtype}")
    if not np.isfinite(tables).all():
        raise _refuse(name, "tables must be finite", "infinity or NaN")
    if outliers is not None:
        outliers.check(name, shape)


def join_outliers(parts: Sequence[Outliers]) -> Outliers:
    """Return the outliers of rows that come one after the other."""
    ends = np.cumsum([part.count for part in parts], dtype=np.int32)
    starts = [part.starts[1:] + (end - part.count) for part, end in zip(parts, ends, strict=True)]
    return Outliers(
        np.concatenate([np.zeros(1, np.int32), *starts]).astype(np.int32),
        np.concatenate([part.columns for part in parts]),
        np.concatenate([part.values for part in parts]),
    )


def _refuse(name: str, rule: str, got: object) -> UnsupportedInputError:
    return UnsupportedInputError(f"[quantized {name}] {rule}; got {got}.")
