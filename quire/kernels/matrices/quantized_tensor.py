"""A quantized matrix in host memory: the one form that every checkpoint format unpacks to.

``value[n, k] = scale[n, g] * (codes[n, k] - zero) + offset[n, g]`` with ``g = k // group_size``,
or ``scale[n, g] * code_book[codes[n, k]]``, or ``scale[n, g] * E4M3[codes[n, k]]``, or
``tables[n, codes[n, k]]`` and what outliers add (:mod:`quire.kernels.matrices.row_tables`). Scales
and offsets are numbers of their own, or bytes times a number for each row, or bytes of runs of
scales (:mod:`quire.kernels.matrices.nested_scales`); the zero is one number, or one for each group.
Columns may be stored in another order than the inputs'. Kernels pack it; what
files look like is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quire.core.errors import UnsupportedInputError
from quire.kernels.matrices.activation_scheme import (
    FINE,
    INTEGERS,
    MAX_INTEGER_INPUTS,
    ActivationScheme,
)
from quire.kernels.matrices.nested_scales import HEADER_BYTES, NestedForm, NestedScales
from quire.kernels.matrices.row_tables import Outliers, check_tables
from quire.kernels.matrices.small_floats import E4M3, E8M0
from quire.kernels.matrices.vector_codes import VECTOR_CODES

#: Bits of a code that kernels can pack.
CODE_BITS = (2, 3, 4, 5, 6, 8)
#: Columns that share a super scale.
SUPER_COLUMNS = 256
#: Values of scales that are bytes, by their type.
SCALE_VALUES = {"e4m3": E4M3, "e8m0": E8M0}
#: Bytes of zeros of groups, by their type.
ZERO_BYTES = {"uint8": 1, "float16": 2}
#: Rows and columns are packed in multiples of this, on any instruction set.
PACKED_MULTIPLE = 32


def padded(count: int) -> int:
    """Return a number of rows or columns with its padding."""
    return -(-count // PACKED_MULTIPLE) * PACKED_MULTIPLE


@dataclass(frozen=True, slots=True)
class RotationForm:
    """The rotation of a matrix's inputs and outputs; see :class:`LatticeMatrix`.

    Attributes:
        stages: Number of codes of a weight that are added up.
        input_base, output_base: Sizes of the matrices of both rotations.
    """

    stages: int
    input_base: int
    output_base: int

    def tail_bytes(self, rows: int, columns: int) -> int:
        """Return the memory of factors and of both matrices."""
        return 4 * (rows + columns + self.input_base**2 + self.output_base**2)


@dataclass(frozen=True, slots=True)
class QuantizedForm:
    """The form of a matrix, all but its size; matrices of one form are packed as one.

    Attributes:
        bits: Bits of a code: 2, 3, 4, 5, 6 or 8.
        group_size: Columns that share a scale: 16, or a multiple of 32.
        scale_type: ``float32`` or ``float16``; ``int8`` or ``int4``, times a float16 super scale;
            ``e4m3``, ``e8m0``, ``nested``, ``odd``, or ``none`` with tables.
        zero: Code of the value 0, the same everywhere; 0 with a code book.
        has_offsets: Whether there are offsets, of the same type.
        code_book: 16 values for 4 bits, or None.
        zero_type: Type of each group's own zero, ``uint8`` or ``float16``; None where all have one.
        row_form: Whether scales are ``times`` or ``over`` a float32 for each row; None for neither.
        float_codes: Whether codes are E4M3, of 8 bits.
        has_input_order: Whether columns are in another order than the inputs.
        nested: The form of scales of type ``nested``; None for others.
        vectors: A name of :data:`quire.kernels.matrices.vector_codes.VECTOR_CODES`, whose scale
            type is ``odd``, or ``E8P``; bits are those of a code that is looked up. Empty without
            vectors.
        rotation: The rotation of a matrix of E8P; None for others.
        activations: The rule by which inputs are rounded; None where a kernel may choose.
        table_type: Type of tables of rows, ``float16`` or ``float32``, without scales (``none``);
            else empty.
        num_outliers: Number of values added to weights of tables; None where there are none of a
            kind.
    """

    bits: int
    group_size: int
    scale_type: str
    zero: int = 0
    has_offsets: bool = False
    code_book: tuple[float, ...] | None = None
    zero_type: str | None = None
    row_form: str | None = None
    float_codes: bool = False
    has_input_order: bool = False
    nested: NestedForm | None = None
    vectors: str = ""
    rotation: RotationForm | None = None
    activations: ActivationScheme | None = None
    table_type: str = ""
    num_outliers: int | None = None

    def __str__(self) -> str:
        if self.table_type:
            sparse = "" if self.num_outliers is None else ", outliers"
            return f"{self.bits} bits, {self.table_type} tables of rows{sparse}"
        if self.rotation is not None:
            return f"{' + '.join([self.vectors] * self.rotation.stages)} lattice codes, rotated"
        if self.vectors:
            return f"{self.vectors} vectors, groups of {self.group_size}"
        kind = "code book" if self.code_book else f"{self.bits} bits"
        parts = [
            "E4M3" if self.float_codes else kind,
            f"groups of {self.group_size}",
            f"{self.scale_type} scales",
            *(["row scales"] if self.row_form else []),
            *(["offsets"] if self.has_offsets else []),
            *([f"{self.zero_type} zeros"] if self.zero_type else []),
            *(["ordered inputs"] if self.has_input_order else []),
            *([str(self.activations)] if self.activations else []),
        ]
        return ", ".join(parts)

    @property
    def has_code_sums(self) -> bool:
        """Whether each row keeps the sum of its codes, less their zeros: inputs have zeros."""
        return (
            self.activations is not None
            and self.activations.has_zeros
            and self.bits == 8
            and self.scale_type in ("float16", "float32")
            and not (self.zero_type or self.has_offsets or self.row_form or self.float_codes)
        )

    @property
    def kind(self) -> QuantizedForm:
        """The part of the form that matrices packed as one share: all but the count of outliers."""
        return self if self.num_outliers is None else replace(self, num_outliers=0)

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Return the memory that a matrix takes when it is packed."""
        if self.rotation is not None:
            stages = padded(rows) * self.rotation.stages * (padded(columns) // 4 + 4)
            return stages + self.rotation.tail_bytes(rows, columns)
        if self.vectors:
            return padded(rows) * (columns // SUPER_COLUMNS) * VECTOR_CODES[self.vectors].row_bytes
        if self.table_type:
            values = (1 << self.bits) * np.dtype(self.table_type).itemsize
            tail = 0 if self.num_outliers is None else 4 * (rows + 1) + 8 * self.num_outliers
            return padded(rows) * (columns * self.bits // 8 + values) + tail
        groups, supers = -(-padded(columns) // self.group_size), -(-columns // SUPER_COLUMNS)
        parts = 2 if self.has_offsets else 1
        if self.scale_type == "int4":
            scales = groups + 2 * supers * parts
        elif self.scale_type == "int8":
            scales = (groups + 2 * supers) * parts
        else:
            scales = groups * parts * {"float32": 4, "float16": 2}.get(self.scale_type, 1)
        if self.zero_type is not None:
            scales += groups * ZERO_BYTES[self.zero_type]
        has_header = self.row_form is not None or self.nested is not None or self.has_code_sums
        scales += HEADER_BYTES * has_header
        tail = 4 * columns * self.has_input_order
        if self.nested is not None:
            num_scales = rows * -(-columns // self.group_size)
            tail += self.nested.tail_bytes(self.nested.num_runs(num_scales))
        return padded(rows) * (padded(columns) * self.bits // 8 + scales) + tail


def stacked_form(forms: Sequence[QuantizedForm]) -> QuantizedForm:
    """Return the form of matrices of one kind, packed as one."""
    first = forms[0]
    if first.num_outliers is None:
        return first
    return replace(first, num_outliers=sum(form.num_outliers or 0 for form in forms))


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A matrix of N rows (outputs) and K columns (inputs), G = ceil(K / group_size).

    Attributes:
        name: The checkpoint's name, for messages.
        bits: Bits of a code: 2, 3, 4, 5, 6 or 8.
        group_size: Columns that share a scale: 16, or a multiple of 32.
        codes: (N, K) uint8, below ``2 ** bits``.
        scales: (N, G) float16 or float32, or uint8 of ``scale_type``.
        zero: Code of the value 0, the same everywhere; 0 with a code book.
        offsets: (N, G) of the dtype of ``scales``, or None.
        code_book: (16,) float32 for 4 bits, or None.
        scale_type: Type of uint8 scales, ``e4m3`` or ``e8m0``; else empty.
        zeros: (N, G) uint8 or float16: each group's own zero, or None; ``zero`` is 0 then.
        row_scales: (N,) float32 that scales are times or over, or None.
        over_rows: Whether scales are over ``row_scales``, not times them.
        float_codes: Whether codes are E4M3, of 8 bits.
        input_order: (K,) int32: the input that each column stands for, or None.
        nested: The meaning of uint8 scales in runs, or None.
        activations: The rule by which inputs are rounded; None where a kernel may choose.
        tables: (N, 2 ** bits) float16 or float32, the values of each row's codes, or None; scales
            are (N, 0) then and groups whole rows.
        outliers: Values added to those of tables, or None.

    Raises:
        UnsupportedInputError: The parts do not fit together.
    """

    name: str
    bits: int
    group_size: int
    codes: np.ndarray
    scales: np.ndarray
    zero: int = 0
    offsets: np.ndarray | None = None
    code_book: np.ndarray | None = None
    scale_type: str = ""
    zeros: np.ndarray | None = None
    row_scales: np.ndarray | None = None
    over_rows: bool = False
    float_codes: bool = False
    input_order: np.ndarray | None = None
    nested: NestedScales | None = None
    activations: ActivationScheme | None = None
    tables: np.ndarray | None = None
    outliers: Outliers | None = None

    def __post_init__(self) -> None:
        if self.bits not in CODE_BITS:
            raise self._refuse(f"bits must be one of {CODE_BITS}", self.bits)
        if self.group_size != 16 and (self.group_size < 32 or self.group_size % 32):
            raise self._refuse("group_size must be 16 or a multiple of 32", self.group_size)
        if self.codes.ndim != 2 or 0 in self.codes.shape or self.codes.dtype != np.uint8:
            raise self._refuse("codes must be (N, K) uint8, not empty", self.codes.shape)
        if not 0 <= self.zero < 1 << self.bits:
            raise self._refuse("zero must be a code", self.zero)
        if self.tables is not None:
            self._check_tables(self.tables)
            return
        if self.outliers is not None:
            raise self._refuse("outliers must come with tables of rows", "none")
        self._check_scales()
        book = self.code_book
        if book is not None and (book.shape != (16,) or self.bits != 4 or self.zero):
            raise self._refuse("a code book must be (16,) for 4 bits, zero 0", book.shape)
        if self.float_codes and (self.bits != 8 or self.zero or book is not None):
            raise self._refuse("E4M3 codes must be of 8 bits, zero 0, no code book", self.bits)
        self._check_zeros()
        order = self.input_order
        if order is not None and (
            order.dtype != np.int32 or not np.array_equal(np.sort(order), np.arange(self.shape[1]))
        ):
            raise self._refuse(f"input_order must be 0..{self.shape[1] - 1} in some order", "other")
        self._check_activations()

    def _check_activations(self) -> None:
        scheme = self.activations
        if scheme is None or (scheme == FINE and not self.float_codes):
            return
        taken: tuple[str, ...] = (*INTEGERS, "e4m3")
        if self.float_codes or self.code_book is not None:
            taken = ("e4m3",) if self.float_codes else ("e2m1",)
        if scheme.codes not in taken:
            raise self._refuse(f"inputs must be rounded to {' or '.join(taken)}", scheme)
        if scheme.codes == "e2m1" and scheme.group_size != self.group_size:
            raise self._refuse("groups of inputs must be those of the matrix", scheme)
        if scheme.codes in INTEGERS and self.shape[1] > MAX_INTEGER_INPUTS:
            raise self._refuse(
                f"rounded inputs must be at most {MAX_INTEGER_INPUTS}", self.shape[1]
            )
        whole = self.bits == 8 and self.group_size >= self.shape[1] and not self.scale_type
        plain = self.offsets is None and self.zeros is None and self.input_order is None
        if scheme.codes == "outliers" and not (whole and plain and self.row_scales is None):
            raise self._refuse("outliers of inputs need 8 bits and a scale for each row", self.form)

    def _check_tables(self, tables: np.ndarray) -> None:
        check_tables(self.name, self.bits, self.shape, tables, self.outliers)
        others: tuple[object, ...] = (self.offsets, self.code_book, self.zeros)
        others = (*others, self.row_scales, self.input_order, self.nested)
        if self.scales.size or self.zero or self.float_codes or self.scale_type:
            raise self._refuse("tables of rows must come without scales", self.scales.shape)
        if any(part is not None for part in others):
            raise self._refuse("tables of rows must be alone", "others")
        if self.codes.max() >= 1 << self.bits:
            raise self._refuse(f"codes must be below {1 << self.bits}", self.codes.max())

    def _check_zeros(self) -> None:
        zeros = self.zeros
        if zeros is not None:
            if zeros.shape != self.scales.shape or str(zeros.dtype) not in ZERO_BYTES:
                rule = f"zeros must be {self.scales.shape} uint8 or float16"
                raise self._refuse(rule, f"{zeros.shape} {zeros.dtype}")
            if self.zero or self.offsets is not None or self.code_book is not None:
                raise self._refuse("zeros must be the only offsets, of codes", "others")
        factors = self.row_scales
        if factors is None:
            return
        if factors.shape != self.codes.shape[:1] or factors.dtype != np.float32:
            rule = f"row_scales must be ({len(self.codes)},) float32"
            raise self._refuse(rule, f"{factors.shape} {factors.dtype}")
        if self.offsets is not None:
            raise self._refuse("row_scales must be without offsets", "both")

    def _check_scales(self) -> None:
        rows, columns = self.codes.shape
        shape = (rows, -(-columns // self.group_size))
        allowed: tuple[type, ...] = (np.float16, np.float32)
        if self.scale_type:
            if self.scale_type not in SCALE_VALUES or self.offsets is not None:
                rule = f"scale_type must be one of {', '.join(SCALE_VALUES)}, without offsets"
                raise self._refuse(rule, self.scale_type)
            allowed = (np.uint8,)
        if self.nested is not None:
            if self.scale_type or self.row_scales is not None or self.offsets is not None:
                raise self._refuse("nested scales must be alone", "others")
            self.nested.check(self.name, rows * shape[1])
            allowed = (np.uint8,)
        for part in (self.scales, self.offsets):
            if part is not None and (part.shape != shape or part.dtype not in allowed):
                rule = f"scales and offsets must be {shape} float16 or float32"
                raise self._refuse(rule, f"{part.shape} {part.dtype}")
        if self.offsets is not None and self.offsets.dtype != self.scales.dtype:
            raise self._refuse("offsets must have the dtype of scales", self.offsets.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, K)."""
        return self.codes.shape

    @property
    def form(self) -> QuantizedForm:
        """The form that the matrix is held in."""
        return QuantizedForm(
            bits=self.bits,
            group_size=self.group_size,
            scale_type=self._scale_type,
            zero=self.zero,
            has_offsets=self.offsets is not None,
            code_book=None if self.code_book is None else tuple(self.code_book.tolist()),
            zero_type=None if self.zeros is None else str(self.zeros.dtype),
            row_form=self._row_form,
            float_codes=self.float_codes,
            has_input_order=self.input_order is not None,
            nested=None if self.nested is None else self.nested.form,
            activations=self.activations,
            table_type="" if self.tables is None else str(self.tables.dtype),
            num_outliers=None if self.outliers is None else self.outliers.count,
        )

    @property
    def _scale_type(self) -> str:
        if self.tables is not None:
            return "none"
        if self.nested is not None:
            return "nested"
        return self.scale_type or str(self.scales.dtype)

    @property
    def _row_form(self) -> str | None:
        if self.row_scales is None:
            return None
        return "over" if self.over_rows else "times"

    def float32(self) -> np.ndarray:
        """Return the values as a new (N, K) float32 array."""
        if self.tables is not None:
            found = np.take_along_axis(self.tables, self.codes, axis=1)
            values: np.ndarray = found.astype(np.float32)
            if self.outliers is not None:
                self.outliers.add_to(values)
            return values
        if self.code_book is not None:
            values = self.code_book.astype(np.float32)[self.codes]
        elif self.float_codes:
            values = E4M3[self.codes]
        elif self.zeros is not None:
            values = self.codes.astype(np.float32) - self._spread(self.zeros)
        else:
            values = self.codes.astype(np.float32) - np.float32(self.zero)
        values *= self._spread(self.scale_numbers())
        if self.offsets is not None:
            values += self._spread(self.offsets)
        if self.input_order is None:
            return values
        ordered = np.empty_like(values)
        ordered[:, self.input_order] = values
        return ordered

    def with_rows(self, rows: np.ndarray | slice) -> QuantizedTensor:
        """Return the matrix of these rows.

        Runs of nested scales go over rows: they end unless the rows are a slice of whole runs.
        """
        nested = self.nested
        if nested is not None:
            nested = nested.of_rows(rows, self.scales.shape)
            if nested is None:
                return replace(self, scales=self.scale_numbers(), nested=None).with_rows(rows)
        arrays = ("codes", "scales", "offsets", "zeros", "row_scales", "tables")
        parts = {name: getattr(self, name) for name in arrays}
        return replace(
            self,
            nested=nested,
            outliers=None if self.outliers is None else self.outliers.of_rows(rows),
            **{name: x[rows] for name, x in parts.items() if x is not None},
        )

    def with_columns(self, columns: slice) -> QuantizedTensor:
        """Return the matrix of these columns, which begin where a group does."""
        assert self.input_order is None, "inputs in the order of columns"
        if self.nested is not None:
            return replace(self, scales=self.scale_numbers(), nested=None).with_columns(columns)
        parts: dict[str, Any] = {}
        sizes = dict.fromkeys(("scales", "offsets", "zeros"), self.group_size)
        for name, size in ({"codes": 1} | sizes).items():
            part = getattr(self, name)
            if part is not None and part.size:
                assert size >= self.shape[1] or columns.start % size == 0, (name, columns)
                whole = part.shape[1] == 1 and size > 1
                found = part if whole else part[:, columns.start // size : -(-columns.stop // size)]
                parts[name] = np.ascontiguousarray(found)
        outliers = None if self.outliers is None else self.outliers.of_columns(columns)
        return replace(self, outliers=outliers, **parts)

    def scale_numbers(self) -> np.ndarray:
        """Return (N, G) scales."""
        if self.nested is not None:
            return self.nested.numbers_of(self.scales)
        scales = SCALE_VALUES[self.scale_type][self.scales] if self.scale_type else self.scales
        if self.row_scales is None:
            return scales
        apply = np.divide if self.over_rows else np.multiply
        numbers: np.ndarray = apply(scales.astype(np.float32), self.row_scales[:, None])
        return numbers

    def _spread(self, groups: np.ndarray) -> np.ndarray:
        """Repeat (N, G) over the columns of groups: (N, K) float32."""
        numbers = groups.astype(np.float32)
        if numbers.shape[1] == 1:
            return numbers
        return np.repeat(numbers, self.group_size, axis=1)[:, : self.codes.shape[1]]

    def _refuse(self, rule: str, got: object) -> UnsupportedInputError:
        return UnsupportedInputError(f"[quantized {self.name}] {rule}; got {got}.")


def integer_code_book(code_book: np.ndarray) -> tuple[np.ndarray, float]:
    """Return a code book as 8-bit integers and their step, for integer dot products.

    Whole numbers within -127..127 stay what they are (step 1), and so do halves of such (step .5);
    others are rounded to 1 / 127 of the largest.
    """
    book = code_book.astype(np.float32)
    for step in (1.0, 0.5):
        whole = book / np.float32(step)
        if np.array_equal(whole, np.rint(whole)) and np.abs(whole).max() <= 127:
            return whole.astype(np.int8), step
    largest = np.float32(np.abs(book).max() / 127)
    return np.rint(book / largest).astype(np.int8), float(largest)
