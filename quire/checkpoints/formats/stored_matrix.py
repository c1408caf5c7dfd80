"""The tensors that together are one quantized matrix of a checkpoint, and what formats are.

N rows (outputs), K columns (inputs), G groups of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from quire.core.errors import WeightMismatchError
from quire.kernels.matrices.lattice_matrix import LatticeMatrix
from quire.kernels.matrices.quantized_tensor import QuantizedForm, QuantizedTensor, padded

#: Types of floats, as safetensors names them.
FLOATS = ("F32", "F16", "BF16")
#: What formats unpack to.
UnpackedMatrix = QuantizedTensor | LatticeMatrix


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One tensor, not read yet.

    Attributes:
        dtype: Element type as safetensors names it.
        shape: Shape, row-major.
        read: A function that returns the elements: floats as float16 or float32, floats of 8 bits
            as uint8.
    """

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """Parts by name, such as ``qweight`` and ``scales``.

    Attributes:
        name: The module's name, for messages.
        parts: Parts by name, without the module's name.
    """

    name: str
    parts: Mapping[str, StoredPart]

    def part(self, name: str, *dtypes: str) -> StoredPart:
        """Return a part.

        Raises:
            WeightMismatchError: The part is missing, or its type is none of ``dtypes``.
        """
        part = self.parts.get(name)
        if part is None:
            raise self.error(f"must have {name}", ", ".join(sorted(self.parts)))
        if part.dtype not in dtypes:
            raise self.error(f"{name} must be one of {', '.join(dtypes)}", part.dtype)
        return part

    def array(self, name: str, shape: tuple[int, ...], *dtypes: str) -> np.ndarray:
        """Read a part that must have the given shape and one of the given types.

        Raises:
            WeightMismatchError: The part is missing, or has another shape or type.
        """
        part = self.part(name, *dtypes)
        if part.shape != shape:
            raise self.error(f"{name} must have shape {shape}", part.shape)
        return part.read()

    def numbers(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Read floats: as float16 where that loses nothing, else as float32.

        Raises:
            WeightMismatchError: The same as in :meth:`array`; or a number is infinite or NaN.
        """
        numbers = self.array(name, shape, *FLOATS)
        if not np.isfinite(numbers).all():
            raise self.error(f"{name} must be finite", "infinity or NaN")
        if numbers.dtype == np.float16:
            return numbers
        with np.errstate(over="ignore"):
            half = numbers.astype(np.float16)
        return half if np.array_equal(half.astype(np.float32), numbers) else numbers

    def error(self, rule: str, got: object) -> WeightMismatchError:
        """Return the error that the matrix breaks a rule."""
        return WeightMismatchError(
            f"[load] {self.name}: {rule}; got {got}. Check that config.json and weights belong "
            "together."
        )


class WeightFormat(Protocol):
    """The way in which a checkpoint stores a quantized matrix."""

    @property
    def marker(self) -> str:
        """The part that only a quantized matrix has."""
        ...

    @property
    def parts(self) -> frozenset[str]:
        """All parts that it may have."""
        ...

    def shape(self, matrix: StoredMatrix) -> tuple[int, int]:
        """Return (N, K), nothing read.

        Raises:
            WeightMismatchError: The parts do not say.
        """
        ...

    def form(self, matrix: StoredMatrix) -> QuantizedForm:
        """Return how the matrix will be held, nothing read: as far as types and shapes tell."""
        ...

    def unpack(self, matrix: StoredMatrix) -> UnpackedMatrix:
        """Read the parts.

        Raises:
            WeightMismatchError: A part is missing, of another type or shape, or out of range.
        """
        ...


def whole_shape(matrix: StoredMatrix, dtype: str, part: str = "weight") -> tuple[int, int]:
    """Return (N, K) of a matrix that has a part with one element for each weight.

    Raises:
        WeightMismatchError: The part is missing, empty or not of two dimensions.
    """
    shape = matrix.part(part, dtype).shape
    if len(shape) != 2 or 0 in shape:
        raise matrix.error(f"{part} must be (N, K), not empty", shape)
    return shape[0], shape[1]


def columns_per_group(matrix: StoredMatrix, group_size: int, columns: int) -> int:
    """Return the columns that share a scale; a ``group_size`` below 1 stands for whole rows.

    Raises:
        WeightMismatchError: Kernels do not hold groups of that size.
    """
    if group_size < 1 or group_size >= columns:
        return padded(columns)
    if group_size != 16 and group_size % 32:
        raise matrix.error("group_size must be 16 or a multiple of 32", group_size)
    return group_size


def scale_type(part: StoredPart) -> str:
    """Return how scales of a part are held, most likely: what is read tells for sure."""
    return "float32" if part.dtype == "F32" else "float16"


def common_zero(zeros: np.ndarray) -> int | None:
    """Return the zero that all groups have, or None."""
    first = int(zeros.flat[0])
    return first if (zeros == first).all() else None


def input_order(matrix: StoredMatrix, part: str, columns: int, size: int) -> np.ndarray | None:
    """Return the inputs group by group (K,) int32; None where groups are runs of inputs.

    Args:
        matrix: A matrix that may have the group of each input as a part.
        part: The part's name.
        columns: K.
        size: Inputs of a group.

    Raises:
        WeightMismatchError: Groups are out of range or of other sizes.
    """
    if part not in matrix.parts:
        return None
    groups = matrix.array(part, (columns,), "I32", "I64")
    count = -(-columns // size)
    if groups.min() < 0 or groups.max() >= count:
        raise matrix.error(
            f"{part} must name groups 0..{count - 1}", f"{groups.min()}..{groups.max()}"
        )
    runs = np.arange(columns) // size
    if np.array_equal(groups, runs):
        return None
    order = np.argsort(groups, kind="stable").astype(np.int32)
    if not np.array_equal(groups[order], runs):
        raise matrix.error(f"{part} must give each group {size} inputs", "other counts")
    return order


def group_zeros(matrix: QuantizedTensor) -> np.ndarray:
    """Return the zero of each group, (N, G) uint8."""
    if matrix.zeros is not None:
        return matrix.zeros
    return np.full(matrix.scales.shape, matrix.zero, np.uint8)


def in_order_of_inputs(matrix: QuantizedTensor) -> tuple[np.ndarray, np.ndarray]:
    """Return codes (N, K), a column for each input in turn, and inputs' groups (K,) int32."""
    columns = matrix.codes.shape[1]
    runs = (np.arange(columns) // matrix.group_size).astype(np.int32)
    if matrix.input_order is None:
        return matrix.codes, runs
    codes, groups = np.empty_like(matrix.codes), np.empty_like(runs)
    codes[:, matrix.input_order] = matrix.codes
    groups[matrix.input_order] = runs
    return codes, groups
