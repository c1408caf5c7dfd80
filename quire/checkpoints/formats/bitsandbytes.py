"""Matrices as bitsandbytes stores them in 4 and 8 bits.

```
weight                     (N * K / 2, 1) uint8   codes, the high half first, row after row
weight.quant_map           (16,) F32              values of the codes
weight.absmax              (N * K / block,) F32   scales of runs of weights
weight.quant_state.*       (bytes,) uint8         JSON: quant_type, blocksize, shape, dtype
with nested scales:
weight.absmax              uint8                  codes of scales, of
weight.nested_quant_map    (256,) F32             times
weight.nested_absmax       (runs of scales,) F32  plus the state's nested_offset
in 8 bits:
weight                     (N, K) int8            times
SCB                        (N,) F32               over 127
```
Source: bitsandbytes (functional.QuantState).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from quire.checkpoints.formats.compressed_tensors import unpack_halves
from quire.checkpoints.formats.stored_matrix import StoredMatrix, whole_shape
from quire.kernels.matrices.nested_scales import TABLE_SIZE, NestedForm, NestedScales
from quire.kernels.matrices.quantized_tensor import QuantizedForm, QuantizedTensor, padded

KINDS = ("nf4", "fp4")
STATE = "weight.quant_state.bitsandbytes__"
#: A state is some hundred bytes of JSON.
MAX_STATE_BYTES = 1 << 16
#: Of the number of a row, one step of its bytes.
PART = np.float32(1 / 127)


@dataclass(frozen=True, slots=True)
class _State:
    """The JSON of a matrix, as it is stored.

    Attributes:
        shape: (N, K).
        block: Weights that share a scale.
        nested_block: Scales that share a scale, 0 where they are numbers of their own.
        nested_offset: Offset that is added to the scales.
    """

    shape: tuple[int, int]
    block: int
    nested_block: int
    nested_offset: float

    @property
    def run(self) -> int:
        """Groups of columns of a run of scales; 0 where scales will be held as numbers."""
        run = self.nested_block * self.block // self.group_size
        return run if run & (run - 1) == 0 else 0

    @property
    def group_size(self) -> int:
        """Columns that share a scale in every row."""
        return math.gcd(self.block, self.shape[1])


@dataclass(frozen=True, slots=True)
class BitsAndBytesFormat:
    """See :class:`~quire.checkpoints.formats.stored_matrix.WeightFormat`."""

    marker: str = "weight.absmax"
    parts: frozenset[str] = frozenset(
        (
            "weight",
            "weight.absmax",
            "weight.quant_map",
            "weight.nested_absmax",
            "weight.nested_quant_map",
            *(f"{STATE}{kind}" for kind in KINDS),
        )
    )

    def shape(self, matrix: StoredMatrix) -> tuple[int, int]:
        """Return (N, K)."""
        return _read_state(matrix).shape

    def form(self, matrix: StoredMatrix) -> QuantizedForm:
        """Return how it will be held."""
        state = _read_state(matrix)
        nested = None
        if state.run:
            book = _finite(matrix, "weight.nested_quant_map", TABLE_SIZE)
            nested = NestedForm(tuple(book.tolist()), state.run)
        return QuantizedForm(
            bits=4,
            group_size=state.group_size,
            scale_type="float32" if nested is None else "nested",
            code_book=tuple(_code_book(matrix).tolist()),
            nested=nested,
        )

    def unpack(self, matrix: StoredMatrix) -> QuantizedTensor:
        """Read the parts."""
        state = _read_state(matrix)
        rows, columns = state.shape
        packed = matrix.array("weight", (rows * columns // 2, 1), "U8").reshape(rows, -1)
        count = -(-rows * columns // state.block)
        scales, nested = _scales(matrix, state, count)
        # Runs of weights go on from row to row; groups of their columns do not.
        scales = np.repeat(scales, state.block // state.group_size)
        scales = scales[: rows * columns // state.group_size]
        return QuantizedTensor(
            name=f"{matrix.name}.weight",
            bits=4,
            group_size=state.group_size,
            codes=unpack_halves(packed >> 4 | packed << 4),
            scales=scales.reshape(rows, -1),
            code_book=_code_book(matrix),
            nested=nested,
        )


@dataclass(frozen=True, slots=True)
class BytesOfBitsAndBytes:
    """8 bits; see :class:`~quire.checkpoints.formats.stored_matrix.WeightFormat`."""

    marker: str = "SCB"
    parts: frozenset[str] = frozenset(("weight", "SCB", "weight_format"))

    def shape(self, matrix: StoredMatrix) -> tuple[int, int]:
        """Return (N, K)."""
        return whole_shape(matrix, "I8")

    def form(self, matrix: StoredMatrix) -> QuantizedForm:
        """Return how it will be held."""
        return QuantizedForm(8, padded(self.shape(matrix)[1]), "float32", zero=128)

    def unpack(self, matrix: StoredMatrix) -> QuantizedTensor:
        """Read the parts; values differ from bitsandbytes' by float32's last bit, at most."""
        rows, columns = self.shape(matrix)
        if "weight_format" in matrix.parts:
            layout = matrix.array("weight_format", (), "U8").item()
            if layout != 0:
                raise matrix.error("weight_format must be 0, of rows", layout)
        return QuantizedTensor(
            name=f"{matrix.name}.weight",
            bits=8,
            group_size=padded(columns),
            codes=matrix.part("weight", "I8").read().view(np.uint8) ^ np.uint8(128),
            scales=_finite(matrix, "SCB", rows)[:, None] * PART,
            zero=128,
        )


def store_four_bits(
    matrix: QuantizedTensor, block: int, kind: str = "nf4"
) -> dict[str, np.ndarray]:
    """Return the parts of a matrix of codes of 4 bits.

    Args:
        matrix: A matrix as :meth:`BitsAndBytesFormat.unpack` returns it.
        block: Weights that share a scale.
        kind: One of :data:`KINDS`.
    """
    assert matrix.code_book is not None, matrix.name
    codes = matrix.codes.reshape(-1, 2)
    state = {
        "quant_type": kind,
        "blocksize": block,
        "dtype": "bfloat16",
        "shape": matrix.shape,
    }
    parts = {
        "weight": codes[:, :1] << 4 | codes[:, 1:],
        "weight.absmax": matrix.scales.reshape(-1)[:: block // matrix.group_size],
        "weight.quant_map": matrix.code_book,
    }
    nested = matrix.nested
    if nested is not None:
        state |= {
            "nested_blocksize": nested.run * matrix.group_size // block,
            "nested_dtype": "float32",
            "nested_offset": nested.offset,
        }
        parts["weight.nested_absmax"] = nested.numbers
        parts["weight.nested_quant_map"] = nested.table
    parts[f"{STATE}{kind}"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    return parts


def store_row_bytes(matrix: QuantizedTensor) -> dict[str, np.ndarray]:
    """Return the parts of a matrix of bytes; its scales are products with 1 / 127, as read."""
    scales = matrix.scales[:, 0]
    largest = scales / PART
    # The product with 1 / 127 is rounded: the number before it may be a neighbour.
    for neighbour in (np.nextafter(largest, np.float32(0)), np.nextafter(largest, np.inf)):
        largest = np.where(largest * PART == scales, largest, neighbour.astype(np.float32))
    assert np.array_equal(largest * PART, scales), matrix.name
    return {
        "weight": (matrix.codes ^ np.uint8(128)).view(np.int8),
        "SCB": largest,
        "weight_format": np.zeros((), np.uint8),
    }


def _scales(
    matrix: StoredMatrix, state: _State, count: int
) -> tuple[np.ndarray, NestedScales | None]:
    """Return the scales of blocks, numbers or bytes, and what the bytes mean."""
    if not state.nested_block:
        return _finite(matrix, "weight.absmax", count), None
    codes = matrix.array("weight.absmax", (count,), "U8")
    book = _finite(matrix, "weight.nested_quant_map", TABLE_SIZE)
    runs = _finite(matrix, "weight.nested_absmax", -(-count // state.nested_block))
    nested = NestedScales(book, runs, state.nested_offset, max(1, state.run))
    if state.run:
        return codes, nested
    numbers: np.ndarray = book[codes] * np.repeat(runs, state.nested_block)[:count]
    return numbers + np.float32(state.nested_offset), None


def _code_book(matrix: StoredMatrix) -> np.ndarray:
    book = _finite(matrix, "weight.quant_map", 16).copy()
    if book[0] == book[8] == 0:
        book[8] = -0.0  # FP4's highest bit is a sign, of 0 as well; the map has 0 twice
    return book


def _finite(matrix: StoredMatrix, name: str, count: int) -> np.ndarray:
    numbers = matrix.array(name, (count,), "F32")
    if not np.isfinite(numbers).all():
        raise matrix.error(f"{name} must be finite", "infinity or NaN")
    return numbers


def _read_state(matrix: StoredMatrix) -> _State:
    found = [part for part in matrix.parts if part.startswith(STATE)]
    if len(found) != 1:
        raise matrix.error(f"must have one {STATE}nf4 or fp4", ", ".join(found) or "none")
    part = matrix.part(found[0], "U8")
    if math.prod(part.shape) > MAX_STATE_BYTES:
        raise matrix.error(f"{found[0]} must be at most {MAX_STATE_BYTES} bytes", part.shape)
    try:
        state = json.loads(part.read().tobytes())
        rows, columns = (_count(number) for number in state["shape"])
        block = _count(state["blocksize"])
        nested = _count(state["nested_blocksize"]) if "nested_blocksize" in state else 0
        offset = float(state.get("nested_offset", 0.0))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise matrix.error(f"{found[0]} must be JSON of a matrix's state", error) from None
    if not math.isfinite(offset):
        raise matrix.error("nested_offset must be finite", offset)
    made = _State((rows, columns), block, nested, offset)
    if made.group_size != 16 and made.group_size % 32:
        rule = "blocksize and columns must have 16 or a multiple of 32 as common divisor"
        raise matrix.error(rule, f"{block} and {columns}")
    return made


def _count(value: Any) -> int:
    if type(value) is not int or not 0 < value < 2**31:
        raise ValueError(f"{value!r} is no count")
    return value
