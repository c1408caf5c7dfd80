"""A quantized matrix in host memory: the one form that every checkpoint format unpacks to.

``value[n, k] = scales[n, g] * (codes[n, k] - zero) + offsets[n, g]`` with ``g = k // group_size``,
or ``scales[n, g] * code_book[codes[n, k]]``. Kernels pack it; what files look like is not known
here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.core.errors import UnsupportedInputError

#: Bits of a code that kernels can pack.
CODE_BITS = (2, 3, 4, 5, 6, 8)


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A matrix of N rows (outputs) and K columns (inputs), G = ceil(K / group_size).

    Attributes:
        name: The checkpoint's name, for messages.
        bits: Of a code: 2, 3, 4, 5, 6 or 8.
        group_size: Columns that share a scale: 16, or a multiple of 32.
        codes: (N, K) uint8, below ``2 ** bits``.
        scales: (N, G) float16 or float32.
        zero: Code of the value 0, the same everywhere; 0 with a code book.
        offsets: (N, G) of the dtype of ``scales``, or None.
        code_book: (16,) float32 for 4 bits, or None.

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

    def __post_init__(self) -> None:
        if self.bits not in CODE_BITS:
            raise self._refuse(f"bits must be one of {CODE_BITS}", self.bits)
        if self.group_size != 16 and (self.group_size < 32 or self.group_size % 32):
            raise self._refuse("group_size must be 16 or a multiple of 32", self.group_size)
        if self.codes.ndim != 2 or 0 in self.codes.shape or self.codes.dtype != np.uint8:
            raise self._refuse("codes must be (N, K) uint8, not empty", self.codes.shape)
        if not 0 <= self.zero < 1 << self.bits:
            raise self._refuse("zero must be a code", self.zero)
        shape = (self.codes.shape[0], -(-self.codes.shape[1] // self.group_size))
        for part in (self.scales, self.offsets):
            if part is None:
                continue
            if part.shape != shape or part.dtype not in (np.float16, np.float32):
                raise self._refuse(
                    f"scales and offsets must be {shape} float16 or float32",
                    f"{part.shape} {part.dtype}",
                )
        if self.offsets is not None and self.offsets.dtype != self.scales.dtype:
            raise self._refuse("offsets must have the dtype of scales", self.offsets.dtype)
        book = self.code_book
        if book is not None and (book.shape != (16,) or self.bits != 4 or self.zero):
            raise self._refuse("a code book must be (16,) for 4 bits, zero 0", book.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, K)."""
        return self.codes.shape

    def float32(self) -> np.ndarray:
        """Return the values as a new (N, K) float32 array."""
        if self.code_book is not None:
            values: np.ndarray = self.code_book.astype(np.float32)[self.codes]
        else:
            values = self.codes.astype(np.float32) - np.float32(self.zero)
        columns = self.codes.shape[1]
        values *= _spread(self.scales, self.group_size, columns)
        if self.offsets is not None:
            values += _spread(self.offsets, self.group_size, columns)
        return values

    def layout(self) -> tuple[object, ...]:
        """Return what must be equal for matrices to be packed as one."""
        book = None if self.code_book is None else self.code_book.tobytes()
        return (
            self.bits,
            self.group_size,
            self.zero,
            self.scales.dtype,
            self.offsets is None,
            book,
        )

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


def _spread(groups: np.ndarray, group_size: int, columns: int) -> np.ndarray:
    """Repeat (N, G) over the columns of each group: (N, columns) float32."""
    if groups.shape[1] == 1:
        return groups.astype(np.float32)
    return np.repeat(groups.astype(np.float32), group_size, axis=1)[:, :columns]
