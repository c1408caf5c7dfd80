"""A quantized matrix in host memory: the one form that every checkpoint format unpacks to.

``value[n, k] = scale[n, g] * (codes[n, k] - zero) + offset[n, g]`` with ``g = k // group_size``,
or ``scale[n, g] * code_book[codes[n, k]]``. Scales and offsets are numbers of their own, or small
integers times a number for each 256 columns. Kernels pack it; what files look like is not known
here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.core.errors import UnsupportedInputError

#: Bits of a code that kernels can pack.
CODE_BITS = (2, 3, 4, 5, 6, 8)
#: Columns that share a super scale.
SUPER_COLUMNS = 256
#: Type of scales and offsets, to how they are held: the numbers themselves, int8, or half a byte.
SCALE_TYPES = ("float32", "float16", "int8", "int4")
#: Rows and columns are packed in multiples of this, on any instruction set.
PACKED_MULTIPLE = 32


def padded(count: int) -> int:
    """Return a number of rows or columns with its padding."""
    return -(-count // PACKED_MULTIPLE) * PACKED_MULTIPLE


@dataclass(frozen=True, slots=True)
class QuantizedForm:
    """How a matrix is held, all but its size; matrices of one form are packed as one.

    Attributes:
        bits: Of a code: 2, 3, 4, 5, 6 or 8.
        group_size: Columns that share a scale: 16, or a multiple of 32.
        scale_type: One of :data:`SCALE_TYPES`; int8 and int4 are times a float16 super scale.
        zero: Code of the value 0, the same everywhere; 0 with a code book.
        has_offsets: Whether there are offsets, of the same type.
        code_book: 16 values for 4 bits, or None.
    """

    bits: int
    group_size: int
    scale_type: str
    zero: int = 0
    has_offsets: bool = False
    code_book: tuple[float, ...] | None = None

    def __str__(self) -> str:
        kind = "code book" if self.code_book else f"{self.bits} bits"
        offsets = ", offsets" if self.has_offsets else ""
        return f"{kind}, groups of {self.group_size}, {self.scale_type} scales{offsets}"

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Return the memory that a matrix takes when it is packed."""
        groups, supers = -(-columns // self.group_size), -(-columns // SUPER_COLUMNS)
        parts = 2 if self.has_offsets else 1
        if self.scale_type == "int4":
            scales = groups + 2 * supers * parts
        elif self.scale_type == "int8":
            scales = (groups + 2 * supers) * parts
        else:
            scales = groups * parts * (4 if self.scale_type == "float32" else 2)
        return padded(rows) * (padded(columns) * self.bits // 8 + scales)


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A matrix of N rows (outputs) and K columns (inputs), G = ceil(K / group_size).

    Attributes:
        name: The checkpoint's name, for messages.
        bits: Of a code: 2, 3, 4, 5, 6 or 8.
        group_size: Columns that share a scale: 16, or a multiple of 32.
        codes: (N, K) uint8, below ``2 ** bits``.
        scales: (N, G) float16 or float32, or int8 to be multiplied with super scales.
        zero: Code of the value 0, the same everywhere; 0 with a code book.
        offsets: (N, G) of the dtype of ``scales``, or None.
        code_book: (16,) float32 for 4 bits, or None.
        super_scales: (N, ceil(K / 256)) float16 where scales are int8, else None.
        super_offsets: The same for offsets.
        nibbles: Scales and offsets are int8 from 0 to 15, to be held in half a byte each.

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
    super_scales: np.ndarray | None = None
    super_offsets: np.ndarray | None = None
    nibbles: bool = False

    def __post_init__(self) -> None:
        if self.bits not in CODE_BITS:
            raise self._refuse(f"bits must be one of {CODE_BITS}", self.bits)
        if self.group_size != 16 and (self.group_size < 32 or self.group_size % 32):
            raise self._refuse("group_size must be 16 or a multiple of 32", self.group_size)
        if self.codes.ndim != 2 or 0 in self.codes.shape or self.codes.dtype != np.uint8:
            raise self._refuse("codes must be (N, K) uint8, not empty", self.codes.shape)
        if not 0 <= self.zero < 1 << self.bits:
            raise self._refuse("zero must be a code", self.zero)
        self._check_scales()
        book = self.code_book
        if book is not None and (book.shape != (16,) or self.bits != 4 or self.zero):
            raise self._refuse("a code book must be (16,) for 4 bits, zero 0", book.shape)

    def _check_scales(self) -> None:
        rows, columns = self.codes.shape
        shape = (rows, -(-columns // self.group_size))
        two_levels = self.super_scales is not None
        allowed = (np.int8,) if two_levels else (np.float16, np.float32)
        for part in (self.scales, self.offsets):
            if part is not None and (part.shape != shape or part.dtype not in allowed):
                rule = f"scales and offsets must be {shape} float16 or float32, or int8 with super"
                raise self._refuse(f"{rule} scales", f"{part.shape} {part.dtype}")
        if self.offsets is not None and self.offsets.dtype != self.scales.dtype:
            raise self._refuse("offsets must have the dtype of scales", self.offsets.dtype)
        if (self.super_offsets is None) == (two_levels and self.offsets is not None):
            raise self._refuse("super offsets must go with offsets", "one without the other")
        if two_levels and SUPER_COLUMNS % self.group_size:
            raise self._refuse("group_size must divide 256 under super scales", self.group_size)
        super_shape = (rows, -(-columns // SUPER_COLUMNS))
        for part in (self.super_scales, self.super_offsets):
            if part is not None and (part.shape != super_shape or part.dtype != np.float16):
                rule = f"super scales must be {super_shape} float16"
                raise self._refuse(rule, f"{part.shape} {part.dtype}")
        if not self.nibbles:
            return
        if not two_levels or self.offsets is None or self.scales.min() < 0:
            raise self._refuse("nibbles must be scales and offsets >= 0", "others")
        if max(self.scales.max(), self.offsets.max()) > 15 or self.offsets.min() < 0:
            raise self._refuse("nibbles must be from 0 to 15", "others")

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, K)."""
        return self.codes.shape

    @property
    def form(self) -> QuantizedForm:
        """How it is held."""
        return QuantizedForm(
            bits=self.bits,
            group_size=self.group_size,
            scale_type="int4" if self.nibbles else str(self.scales.dtype),
            zero=self.zero,
            has_offsets=self.offsets is not None,
            code_book=None if self.code_book is None else tuple(self.code_book.tolist()),
        )

    def float32(self) -> np.ndarray:
        """Return the values as a new (N, K) float32 array."""
        if self.code_book is not None:
            values: np.ndarray = self.code_book.astype(np.float32)[self.codes]
        else:
            values = self.codes.astype(np.float32) - np.float32(self.zero)
        values *= self._spread(self.scales, self.super_scales)
        if self.offsets is not None:
            values += self._spread(self.offsets, self.super_offsets)
        return values

    def _spread(self, groups: np.ndarray, supers: np.ndarray | None) -> np.ndarray:
        """Repeat (N, G), times its super scales, over the columns of groups: (N, K) float32."""
        numbers = groups.astype(np.float32)
        if supers is not None:
            per_super = SUPER_COLUMNS // self.group_size
            spread = np.repeat(supers.astype(np.float32), per_super, axis=1)
            numbers *= spread[:, : groups.shape[1]]
        if numbers.shape[1] == 1:
            return numbers
        return np.repeat(numbers, self.group_size, axis=1)[:, : self.codes.shape[1]]

    def _refuse(self, rule: str, got: object) -> UnsupportedInputError:
        return UnsupportedInputError(f"[quantized {self.name}] {rule}; got {got}.")


def integer_code_book(code_book: np.ndarray) -> tuple[np.ndarray, float]:
    """Return a code book as 8-bit integers and their step, for integer dot products.

    Whole numbers within -127..127 stay what they are (step 1); others are rounded to 1 / 127 of the
    largest.
    """
    book = code_book.astype(np.float32)
    if np.array_equal(book, np.rint(book)) and np.abs(book).max() <= 127:
        return book.astype(np.int8), 1.0
    step = np.float32(np.abs(book).max() / 127)
    return np.rint(book / step).astype(np.int8), float(step)
