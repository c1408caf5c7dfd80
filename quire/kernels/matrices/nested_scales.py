"""Scales that are quantized themselves, in runs that go on from row to row of a matrix.

``scale = table[byte] * number of the run + offset``: one multiplication and one sum, in float32.

Source: the double quantization of QLoRA (Dettmers et al. 2023), as bitsandbytes stores it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from quire.core.errors import UnsupportedInputError

#: Of each row, where its first scale is among all.
HEADER_BYTES = 4
TABLE_SIZE = 256


@dataclass(frozen=True, slots=True)
class NestedForm:
    """The form that matrices packed as one have in common.

    Attributes:
        table: The values of bytes.
        run: Scales of a run, a power of two.
    """

    table: tuple[float, ...]
    run: int

    def num_runs(self, scales: int, matrices: int = 1) -> int:
        """Return the most runs that ``scales`` of some matrices are in, padding included."""
        return -(-scales // self.run) + 2 * matrices

    def tail_bytes(self, num_runs: int) -> int:
        """Return the memory of runs, a number and an offset each, and of the table."""
        return 8 * num_runs + 4 * TABLE_SIZE


@dataclass(frozen=True, slots=True)
class NestedScales:
    """The meaning of the bytes of a matrix's scales.

    Attributes:
        table: (256,) float32.
        numbers: (runs,) float32.
        offset: Term added to each scale.
        run: Scales of a run, a power of two.
    """

    table: np.ndarray
    numbers: np.ndarray
    offset: float
    run: int

    @property
    def form(self) -> NestedForm:
        """The form that must be equal for matrices that are packed as one."""
        return NestedForm(tuple(self.table.tolist()), self.run)

    def check(self, name: str, scales: int) -> None:
        """Refuse parts that do not fit together.

        Raises:
            UnsupportedInputError: The parts do not fit; the message names the matrix.
        """
        run, found = self.run, (self.numbers.shape, self.numbers.dtype)
        if run < 1 or run & run - 1 or found != ((-(-scales // run),), np.dtype(np.float32)):
            rule = f"numbers must be float32, one for each run of a power of two of {scales} scales"
            raise UnsupportedInputError(f"[quantized {name}] {rule}; got {found} and {run}.")
        if self.table.shape != (TABLE_SIZE,) or self.table.dtype != np.float32:
            raise UnsupportedInputError(
                f"[quantized {name}] a table must be ({TABLE_SIZE},) float32; got "
                f"{self.table.shape} {self.table.dtype}."
            )

    def of_rows(self, rows: np.ndarray | slice, shape: tuple[int, ...]) -> NestedScales | None:
        """Return what bytes (N, G) of some rows mean; None unless they are whole runs."""
        if not isinstance(rows, slice):
            return None
        first, last = (row * shape[1] for row in rows.indices(shape[0])[:2])
        if first % self.run or (last % self.run and last < shape[0] * shape[1]):
            return None
        return replace(self, numbers=self.numbers[first // self.run : -(-last // self.run)])

    def numbers_of(self, scales: np.ndarray) -> np.ndarray:
        """Return scales (N, G) float32 of their bytes (N, G) uint8."""
        runs = np.repeat(self.numbers, self.run)[: scales.size].reshape(scales.shape)
        values: np.ndarray = self.table[scales] * runs + np.float32(self.offset)
        return values

    def pairs(self) -> np.ndarray:
        """Return the number and the offset of each run, (runs + 1, 2) float32: one is padding."""
        pairs = np.full((len(self.numbers) + 1, 2), self.offset, np.float32)
        pairs[:-1, 0], pairs[-1] = self.numbers, 0.0
        return pairs
