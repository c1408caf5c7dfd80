"""Matrices as compressed-tensors stores them, of integers and of floats with few bits.

```
pack-quantized       weight_packed  (N, K * bits / 32) int32     codes, 2 ** (bits - 1) added
int-quantized        weight         (N, K) int8
float-quantized      weight         (N, K) F8_E4M3
mxfp8-quantized      weight         (N, K) F8_E4M3
                     weight_scale   (N, K / 32) uint8   powers of two
nvfp4-pack-quantized weight_packed  (N, K / 2) uint8   E2M1, the low half first
                     weight_scale   (N, K / 16) F8_E4M3   over weight_global_scale (1,)
mxfp4-pack-quantized weight_packed  (N, K / 2) uint8
                     weight_scale   (N, K / 32) uint8   powers of two
all others           weight_scale   (1,), (N, 1), (N, G), or of blocks (N / block, K / block)
                     weight_zero_point   of the scale's shape; packed along N where codes are
                     weight_g_idx   (K,) the group of each input, or -1 for all: runs of inputs
```
Source: the package compressed-tensors (compressors).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.checkpoints.formats.packed_words import pack_words, unpack_words, words_of
from quire.checkpoints.formats.stored_matrix import (
    FLOATS,
    StoredMatrix,
    columns_per_group,
    common_zero,
    group_zeros,
    in_order_of_inputs,
    input_order,
    scale_type,
    whole_shape,
)
from quire.kernels.matrices.quantized_tensor import QuantizedForm, QuantizedTensor
from quire.kernels.matrices.small_floats import E2M1

#: What is known of activations; no product needs it.
OF_INPUTS = ("input_scale", "input_zero_point", "input_global_scale")
COMMON = ("weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape", *OF_INPUTS)
NV_GROUP, MX_GROUP = 16, 32
E8M0_NAN = 255


@dataclass(frozen=True, slots=True)
class PackedIntegers:
    """``pack-quantized``; see :class:`~quire.checkpoints.formats.stored_matrix.WeightFormat`.

    Attributes:
        bits: 2, 3, 4 or 8.
        group_size: Inputs that share a scale; below 1 for all.
        symmetric: Whether matrices have no zero points, as far as the configuration says.
    """

    bits: int
    group_size: int
    symmetric: bool
    marker: str = "weight_packed"
    parts: frozenset[str] = frozenset(("weight_packed", *COMMON))

    def shape(self, matrix: StoredMatrix) -> tuple[int, int]:
        """Return (N, K)."""
        rows, columns = matrix.array("weight_shape", (2,), "I64", "I32").tolist()
        words = matrix.part("weight_packed", "I32").shape
        if rows < 1 or columns < 1 or words != (rows, words_of(columns, self.bits)):
            rule = f"weight_packed must have weight_shape ({rows}, {columns}) of {self.bits} bits"
            raise matrix.error(rule, words)
        return rows, columns

    def form(self, matrix: StoredMatrix) -> QuantizedForm:
        """Return how it will be held."""
        columns = self.shape(matrix)[1]
        return QuantizedForm(
            bits=self.bits,
            group_size=columns_per_group(matrix, self.group_size, columns),
            scale_type=scale_type(matrix.part("weight_scale", *FLOATS)),
            zero=1 << self.bits - 1 if self.symmetric else 0,
            zero_type=None if self.symmetric else "uint8",
            has_input_order="weight_g_idx" in matrix.parts,
        )

    def unpack(self, matrix: StoredMatrix) -> QuantizedTensor:
        """Read the parts."""
        rows, columns = self.shape(matrix)
        size = columns_per_group(matrix, self.group_size, columns)
        groups = -(-columns // size)
        words = matrix.part("weight_packed", "I32").read()
        codes = unpack_words(words, self.bits, columns)
        order = _order(matrix, columns, size)
        zero: int | None = 1 << self.bits - 1
        zeros = None
        if "weight_zero_point" in matrix.parts:
            packed = matrix.array("weight_zero_point", (words_of(rows, self.bits), groups), "I32")
            zeros = unpack_words(np.ascontiguousarray(packed.T), self.bits, rows).T
            zero = common_zero(zeros)
        return QuantizedTensor(
            name=f"{matrix.name}.weight",
            bits=self.bits,
            group_size=size,
            codes=codes if order is None else np.ascontiguousarray(codes[:, order]),
            scales=matrix.numbers("weight_scale", (rows, groups)),
            zero=zero or 0,
            zeros=None if zeros is None or zero is not None else np.ascontiguousarray(zeros),
            input_order=order,
        )


def _order(matrix: StoredMatrix, columns: int, size: int) -> np.ndarray | None:
    part = "weight_g_idx"
    if part in matrix.parts and (matrix.array(part, (columns,), "I32", "I64") == -1).all():
        return None
    return input_order(matrix, part, columns, size)


def store_packed_integers(matrix: QuantizedTensor) -> dict[str, np.ndarray]:
    """Return the parts of a matrix of integers; :class:`PackedIntegers` reads its values back."""
    codes, groups = in_order_of_inputs(matrix)
    parts = {
        "weight_packed": pack_words(codes, matrix.bits),
        "weight_scale": matrix.scales,
        "weight_shape": np.array(matrix.shape, np.int64),
    }
    if matrix.zeros is not None or matrix.zero != 1 << matrix.bits - 1:
        packed = pack_words(np.ascontiguousarray(group_zeros(matrix).T), matrix.bits)
        parts["weight_zero_point"] = np.ascontiguousarray(packed.T)
    if matrix.input_order is not None:
        parts["weight_g_idx"] = groups
    return parts


@dataclass(frozen=True, slots=True)
class WholeBytes:
    """``int-quantized`` and ``float-quantized``: a byte for each weight.

    Attributes:
        dtype: Element type of the weights, ``I8`` or ``F8_E4M3``.
        group_size: Inputs that share a scale; below 1 for all.
        block: (outputs, inputs) that share a scale, or None.
        scale_type: ``e8m0``, or empty for floats.
        scale: The part with the scales.
    """

    dtype: str
    group_size: int = 0
    block: tuple[int, int] | None = None
    scale_type: str = ""
    scale: str = "weight_scale"
    marker: str = "weight_scale"
    parts: frozenset[str] = frozenset(("weight", *COMMON))

    def shape(self, matrix: StoredMatrix) -> tuple[int, int]:
        """Return (N, K)."""
        return whole_shape(matrix, self.dtype)

    def form(self, matrix: StoredMatrix) -> QuantizedForm:
        """Return how it will be held."""
        columns = self.shape(matrix)[1]
        return QuantizedForm(
            bits=8,
            group_size=self._columns_per_scale(matrix, columns),
            scale_type=self.scale_type or scale_type(matrix.part(self.scale, *FLOATS)),
            zero=128 if self.dtype == "I8" else 0,
            float_codes=self.dtype != "I8",
        )

    def unpack(self, matrix: StoredMatrix) -> QuantizedTensor:
        """Read the parts."""
        rows, columns = self.shape(matrix)
        codes = matrix.part("weight", self.dtype).read().view(np.uint8)
        size = self._columns_per_scale(matrix, columns)
        zero, zeros = 0, None
        if self.dtype == "I8":
            codes, zero = codes ^ np.uint8(128), 128
            zeros = self._zeros(matrix, rows, -(-columns // size))
        elif ((codes & 127) == 127).any():
            raise matrix.error("weight must have no NaN", "one")
        return QuantizedTensor(
            name=f"{matrix.name}.weight",
            bits=8,
            group_size=size,
            codes=np.ascontiguousarray(codes),
            scales=self._scales(matrix, rows, columns, -(-columns // size)),
            zero=zero if zeros is None else 0,
            zeros=zeros,
            scale_type=self.scale_type,
            float_codes=self.dtype != "I8",
        )

    def _columns_per_scale(self, matrix: StoredMatrix, columns: int) -> int:
        size = self.block[1] if self.block else self.group_size
        return columns_per_group(matrix, size, columns)

    def _scales(self, matrix: StoredMatrix, rows: int, columns: int, groups: int) -> np.ndarray:
        """Return (N, G), spread from those of blocks or of all outputs."""
        if self.scale_type:
            return read_powers(matrix, self.scale, (rows, groups))
        stored = matrix.part(self.scale, *FLOATS).shape
        if self.block is None:
            if groups == 1 and stored in ((), (1,)):
                return np.repeat(matrix.numbers(self.scale, stored).reshape(1), rows)[:, None]
            shape = stored if stored in ((rows, groups), (rows,)) else (rows, groups)
            return matrix.numbers(self.scale, shape).reshape(rows, groups)
        height = self.block[0]
        scales = matrix.numbers(self.scale, (-(-rows // height), -(-columns // self.block[1])))
        return np.ascontiguousarray(np.repeat(scales, height, axis=0)[:rows])

    def _zeros(self, matrix: StoredMatrix, rows: int, groups: int) -> np.ndarray | None:
        """Return the codes of 0 where they are not all the middle one."""
        part = matrix.parts.get("weight_zero_point")
        if part is None:
            return None
        shape = part.shape if groups == 1 and part.shape in ((), (1,)) else (rows, groups)
        zeros = matrix.array("weight_zero_point", shape, "I8").view(np.uint8)
        if not zeros.any():
            return None
        return np.broadcast_to(zeros ^ np.uint8(128), (rows, groups)).copy()


def store_bytes(
    matrix: QuantizedTensor, scales: str, block: int, scale: str = "weight_scale"
) -> dict[str, np.ndarray]:
    """Return the parts of a matrix of 8 bits; :class:`WholeBytes` reads its values back.

    Args:
        matrix: A matrix whose codes are floats, or integers whose zero is 128.
        scales: Weights that share a scale: ``channel``, ``tensor`` or ``block``.
        block: Rows of a block.
        scale: The part with the scales.
    """
    kept = {
        "channel": matrix.scales,
        "tensor": matrix.scales[:1, 0],
        "block": matrix.scales[::block],
    }
    codes = matrix.codes if matrix.float_codes else (matrix.codes ^ np.uint8(128)).view(np.int8)
    return {"weight": codes, scale: np.ascontiguousarray(kept[scales], np.float32)}


@dataclass(frozen=True, slots=True)
class FourBitFloats:
    """``nvfp4-pack-quantized`` and ``mxfp4-pack-quantized``.

    Attributes:
        group_size: :data:`NV_GROUP` or :data:`MX_GROUP`.
        packed: The part with the codes.
        factor: The part that scales of :data:`NV_GROUP` are divided or multiplied by.
        over: Whether scales are divided by ``factor``; else they are multiplied.
    """

    group_size: int
    packed: str = "weight_packed"
    factor: str = "weight_global_scale"
    over: bool = True
    marker: str = "weight_packed"
    parts: frozenset[str] = frozenset(("weight_packed", "weight_global_scale", *COMMON))

    def shape(self, matrix: StoredMatrix) -> tuple[int, int]:
        """Return (N, K)."""
        pairs = matrix.part(self.packed, "U8").shape
        if len(pairs) != 2 or 0 in pairs or pairs[1] * 2 % self.group_size:
            rule = f"{self.packed} must be (N, K / 2), K % {self.group_size} = 0"
            raise matrix.error(rule, pairs)
        return pairs[0], pairs[1] * 2

    def form(self, matrix: StoredMatrix) -> QuantizedForm:
        """Return how it will be held."""
        two_levels = self.group_size == NV_GROUP
        return QuantizedForm(
            bits=4,
            group_size=self.group_size,
            scale_type="e4m3" if two_levels else "e8m0",
            code_book=tuple(E2M1.tolist()),
            row_form=("over" if self.over else "times") if two_levels else None,
        )

    def unpack(self, matrix: StoredMatrix) -> QuantizedTensor:
        """Read the parts."""
        rows, columns = self.shape(matrix)
        shape = (rows, columns // self.group_size)
        row_scales = None
        if self.group_size == NV_GROUP:
            scales = matrix.array("weight_scale", shape, "F8_E4M3")
            if ((scales & 127) == 127).any():
                raise matrix.error("weight_scale must have no NaN", "one")
            row_scales = np.full(rows, self._factor(matrix), np.float32)
        else:
            scales = read_powers(matrix, "weight_scale", shape)
        return QuantizedTensor(
            name=f"{matrix.name}.weight",
            bits=4,
            group_size=self.group_size,
            codes=unpack_halves(matrix.part(self.packed, "U8").read()),
            scales=np.ascontiguousarray(scales),
            code_book=E2M1,
            scale_type="e4m3" if self.group_size == NV_GROUP else "e8m0",
            row_scales=row_scales,
            over_rows=self.over,
        )

    def _factor(self, matrix: StoredMatrix) -> np.float32:
        shape = () if matrix.part(self.factor, "F32").shape == () else (1,)
        found = np.float32(matrix.array(self.factor, shape, "F32").item())
        if not (np.isfinite(found) and found > 0):
            raise matrix.error(f"{self.factor} must be a finite number > 0", found)
        return found


def store_four_bits(matrix: QuantizedTensor) -> dict[str, np.ndarray]:
    """Return the parts of a matrix of E2M1; :class:`FourBitFloats` reads its values back."""
    parts = {"weight_packed": pack_halves(matrix.codes), "weight_scale": matrix.scales}
    if matrix.row_scales is not None:
        parts["weight_global_scale"] = matrix.row_scales[:1]
    return parts


def read_powers(matrix: StoredMatrix, part: str, shape: tuple[int, ...]) -> np.ndarray:
    """Read scales that are powers of two, E8M0.

    Raises:
        WeightMismatchError: A number is NaN, or the part is missing or of another shape.
    """
    scales = matrix.array(part, shape, "U8", "F8_E8M0")
    if (scales == E8M0_NAN).any():
        raise matrix.error(f"{part} must have no NaN", "one")
    return np.ascontiguousarray(scales)


def unpack_halves(pairs: np.ndarray) -> np.ndarray:
    """Return the 4-bit codes (N, 2 P) of bytes (N, P), the low half first."""
    codes = np.stack([pairs & 15, pairs >> 4], axis=-1)
    return codes.reshape(len(pairs), -1)


def pack_halves(codes: np.ndarray) -> np.ndarray:
    """Return bytes (N, P) of 4-bit codes (N, 2 P); :func:`unpack_halves` is the inverse."""
    packed: np.ndarray = codes[:, ::2] | codes[:, 1::2] << np.uint8(4)
    return packed
