"""Matrices as SqueezeLLM stores them: codes of a table that each row has, and outliers.

```
qweight           (K * bits / 32, N) int32   codes packed along K
lookup_table      (N, 2 ** bits)             value = lookup_table[n, code], and of outliers more:
rows              (N + 1,) int32             where each row's outliers begin (CSR)
cols, vals        (count,) int32, floats     their inputs, and what is added
full_rows         (K, R)                     added to whole outputs,
full_row_indices  (R,) int32                 which are these
startrows                                    how another kernel shares work out; not read
```
Source: SqueezeLLM (squeezellm/quant.py, QuantLinearLUT).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.checkpoints.formats.packed_words import (
    WORD_BITS,
    pack_words,
    unpack_words,
)
from quire.checkpoints.formats.stored_matrix import FLOATS, StoredMatrix, scale_type
from quire.kernels.matrices.quantized_tensor import QuantizedForm, QuantizedTensor, padded
from quire.kernels.matrices.row_tables import TABLE_COLUMNS, Outliers

#: Parts that come together.
SPARSE = ("rows", "cols", "vals")
FULL_ROWS = ("full_rows", "full_row_indices")


@dataclass(frozen=True, slots=True)
class SqueezeLLMFormat:
    """See :class:`~quire.checkpoints.formats.stored_matrix.WeightFormat`.

    Attributes:
        bits: 3 or 4.
    """

    bits: int
    marker: str = "lookup_table"
    parts: frozenset[str] = frozenset(("qweight", "lookup_table", *SPARSE, *FULL_ROWS, "startrows"))

    def shape(self, matrix: StoredMatrix) -> tuple[int, int]:
        """Return (N, K)."""
        stored = matrix.part("qweight", "I32").shape
        if len(stored) != 2 or 0 in stored or stored[0] % self.bits:
            rule = f"qweight must be (words, N) of {self.bits}-bit codes, not empty"
            raise matrix.error(rule, stored)
        want = stored[1], 1 << self.bits
        table = matrix.part("lookup_table", *FLOATS).shape
        if table != want:
            raise matrix.error(f"lookup_table must have shape {want}", table)
        return stored[1], stored[0] * WORD_BITS // self.bits

    def form(self, matrix: StoredMatrix) -> QuantizedForm:
        """Return how it will be held."""
        columns = self.shape(matrix)[1]
        return QuantizedForm(
            bits=self.bits,
            group_size=padded(columns),
            scale_type="none",
            table_type=scale_type(matrix.part("lookup_table", *FLOATS)),
            num_outliers=_count(matrix),
        )

    def unpack(self, matrix: StoredMatrix) -> QuantizedTensor:
        """Read the parts."""
        rows, columns = self.shape(matrix)
        words = matrix.part("qweight", "I32").read()
        return QuantizedTensor(
            name=f"{matrix.name}.weight",
            bits=self.bits,
            group_size=padded(columns),
            codes=unpack_words(np.ascontiguousarray(words.T), self.bits, columns),
            scales=np.empty((rows, 0), np.float16),
            tables=matrix.numbers("lookup_table", (rows, 1 << self.bits)),
            outliers=_outliers(matrix, rows, columns),
        )


def _count(matrix: StoredMatrix) -> int | None:
    """Return how many outliers there are at most; None where the matrix has no such part."""
    counts = [
        int(np.prod(matrix.part(name, *FLOATS).shape))
        for name in ("vals", "full_rows")
        if name in matrix.parts
    ]
    return sum(counts) if counts else None


def _outliers(matrix: StoredMatrix, rows: int, columns: int) -> Outliers | None:
    found = []
    if any(name in matrix.parts for name in SPARSE):
        found.append(_sparse(matrix, rows, columns))
    if any(name in matrix.parts for name in FULL_ROWS):
        found.append(_full_rows(matrix, rows, columns))
    if not found:
        return None
    return found[0] if len(found) == 1 else _merged(found, rows)


def _sparse(matrix: StoredMatrix, rows: int, columns: int) -> Outliers:
    values = matrix.part("vals", *FLOATS)
    if len(values.shape) != 1:
        raise matrix.error("vals must be (count,)", values.shape)
    count = values.shape[0]
    starts = matrix.array("rows", (rows + 1,), "I32")
    inputs = matrix.array("cols", (count,), "I32")
    if starts[0] != 0 or starts[-1] != count or (np.diff(starts.astype(np.int64)) < 0).any():
        raise matrix.error(f"rows must go up from 0 to {count}", "other numbers")
    if count and (inputs.min() < 0 or inputs.max() >= columns):
        rule = f"cols must be inputs 0..{columns - 1}"
        raise matrix.error(rule, f"{inputs.min()}..{inputs.max()}")
    return Outliers(starts, inputs, matrix.numbers("vals", (count,)).astype(np.float32))


def _full_rows(matrix: StoredMatrix, rows: int, columns: int) -> Outliers:
    """Return rows of floats as outliers that are not 0."""
    shape = matrix.part("full_rows", *FLOATS).shape
    if len(shape) != 2 or shape[0] != columns:
        raise matrix.error(f"full_rows must be ({columns}, rows)", shape)
    outputs = matrix.array("full_row_indices", (shape[1],), "I32")
    if shape[1] and (outputs.min() < 0 or outputs.max() >= rows):
        rule = f"full_row_indices must be outputs 0..{rows - 1}"
        raise matrix.error(rule, f"{outputs.min()}..{outputs.max()}")
    order = np.argsort(outputs, kind="stable")
    values = matrix.numbers("full_rows", shape).astype(np.float32).T[order]
    kept, inputs = np.nonzero(values)
    return _by_rows(outputs[order][kept], inputs, values[kept, inputs], rows)


def _merged(parts: list[Outliers], rows: int) -> Outliers:
    """Return the outliers of all parts; those of a row keep their order."""
    places = np.concatenate([part.rows for part in parts])
    order = np.argsort(places, kind="stable")
    inputs = np.concatenate([part.columns for part in parts])[order]
    return _by_rows(
        places[order], inputs, np.concatenate([part.values for part in parts])[order], rows
    )


def _by_rows(places: np.ndarray, inputs: np.ndarray, values: np.ndarray, rows: int) -> Outliers:
    """Return outliers whose rows are in ascending order."""
    starts = np.searchsorted(places, np.arange(rows + 1)).astype(np.int32)
    return Outliers(starts, inputs.astype(np.int32), np.ascontiguousarray(values))


def store_squeezellm(matrix: QuantizedTensor) -> dict[str, np.ndarray]:
    """Return the parts of a matrix with tables; :class:`SqueezeLLMFormat` reads its values back."""
    assert matrix.tables is not None and matrix.shape[1] % TABLE_COLUMNS == 0, matrix.name
    parts = {
        "qweight": np.ascontiguousarray(pack_words(matrix.codes, matrix.bits).T),
        "lookup_table": matrix.tables,
    }
    outliers = matrix.outliers
    if outliers is None:
        return parts
    sparse = (outliers.starts, outliers.columns, outliers.values)
    return parts | dict(zip(SPARSE, sparse, strict=True))
