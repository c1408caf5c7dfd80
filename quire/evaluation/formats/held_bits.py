"""Bits a weight: what packed matrices take in memory, next to the formula of their format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from quire.core.model.kv_cache_spec import DTYPE_BYTES
from quire.kernels.matrices.quantized_tensor import SUPER_COLUMNS, QuantizedForm
from quire.kernels.matrices.vector_codes import VECTOR_CODES
from quire.kernels.packed_weights import PackedWeights

#: Bits of a scale, or of an offset, by how it is held.
SCALE_BITS = {
    "float32": 32,
    "float16": 16,
    "int8": 8,
    "int4": 4,
    "e4m3": 8,
    "e8m0": 8,
    "nested": 8,
    "none": 0,
}
#: Bits of the number that bytes and nibbles are times, for each :data:`SUPER_COLUMNS` columns.
SUPER_BITS = {"int8": 16, "int4": 16}
ZERO_BITS = {"uint8": 8, "float16": 16}


@dataclass(frozen=True, slots=True)
class HeldBits:
    """The memory of some matrices.

    Attributes:
        num_weights: Elements, without padding.
        held: Bits of memory for each, padding, scales and all.
        formula: Bits for each by the formula of their format.
    """

    num_weights: int
    held: float
    formula: float


def formula_bits(form: QuantizedForm, rows: int, columns: int) -> float:
    """Return the bits of one weight: its code, and its share of what others share with it.

    ``bits + (scale + offset + zero) / group_size + super scales / 256``, a number for each row over
    the columns, and one for each column over the rows. A group has no more columns than the matrix.
    Of scales that are nested, a number for each run of them over its columns. Vectors have all of
    theirs in the bytes of 256 columns; lattice codes, of 2 bits in each stage, have a scale in each
    for a row, and all have what rotates them. Tables are those of a row over its columns; an
    outlier is a value and a column, and each row says where its outliers are.
    """
    if form.rotation is not None:
        stages, tail = form.rotation.stages, form.rotation.tail_bytes(rows, columns)
        return stages * (2 + 32 / columns) + 8 * tail / (rows * columns)
    if form.table_type:
        table = (1 << form.bits) * SCALE_BITS[form.table_type] / columns
        count = form.num_outliers
        sparse = 0.0 if count is None else 64 * count / (rows * columns) + 32 / columns
        return form.bits + table + sparse
    if form.vectors:
        return 8 * VECTOR_CODES[form.vectors].row_bytes / SUPER_COLUMNS
    group = min(form.group_size, columns)
    parts = 2 if form.has_offsets else 1
    shared = parts * SCALE_BITS[form.scale_type]
    if form.zero_type is not None:
        shared += ZERO_BITS[form.zero_type]
    supers = parts * SUPER_BITS.get(form.scale_type, 0) / min(SUPER_COLUMNS, columns)
    by_row = 32 / columns if form.row_form is not None else 0.0
    by_column = 32 / rows if form.has_input_order else 0.0
    by_run = 0.0
    if form.nested is not None:
        by_run = 32 / min(form.nested.run * group, rows * columns)
    return form.bits + shared / group + supers + by_row + by_column + by_run


def held_bits(matrices: Iterable[PackedWeights]) -> HeldBits | None:
    """Return what matrices take together; None where nothing is packed."""
    count = held = 0
    formula = 0.0
    for matrix in matrices:
        rows, columns = matrix.shape
        own = 8.0 * DTYPE_BYTES[matrix.dtype] if matrix.form is None else None
        if matrix.form is not None:
            own = formula_bits(matrix.form, rows, columns)
        assert own is not None
        count += rows * columns
        held += 8 * memoryview(matrix.data).nbytes
        formula += own * rows * columns
    return HeldBits(count, held / count, formula / count) if count else None
