"""The bits of GGUF's types: unpacked to integers and scales, and made from floats.

Every quantized type is ``value = scale * code + offset``, scales and offsets shared by a group.
Kernels pack blocks themselves and are tested against :func:`unpack` and :func:`dequantize`.
B blocks, E elements of a block, G groups of a block.

Source: the block structures of ggml (ggml-common.h); the tests compare with the ``gguf`` package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from quire.checkpoints.gguf.gguf_layouts import LAYOUTS
from quire.checkpoints.gguf.gguf_vector_types import VECTOR_FORMS, dequantize_vectors
from quire.kernels.matrices.quantized_tensor import SCALE_VALUES, QuantizedForm
from quire.kernels.matrices.small_floats import E2M1

#: Values of the 4-bit codes of IQ4_NL and IQ4_XS.
CODE_BOOK = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)
#: Values of the 4-bit codes of MXFP4, which has no negative zero.
MX_CODE_BOOK = E2M1 + np.float32(0)
#: The scale of MXFP4 that is no number in the format; ggml reads it as 2 ** 128.
MX_SCALE_NAN = 255


#: How kernels hold each type; the values of codes are ``code - zero``, or the code book's.
FORMS = {
    "Q4_0": QuantizedForm(4, 32, "float16", zero=8),
    "Q4_1": QuantizedForm(4, 32, "float16", has_offsets=True),
    "Q5_0": QuantizedForm(5, 32, "float16", zero=16),
    "Q5_1": QuantizedForm(5, 32, "float16", has_offsets=True),
    "Q8_0": QuantizedForm(8, 32, "float16", zero=128),
    "Q2_K": QuantizedForm(2, 16, "int4", has_offsets=True),
    "Q3_K": QuantizedForm(3, 16, "int8", zero=4),
    "Q4_K": QuantizedForm(4, 32, "int8", has_offsets=True),
    "Q5_K": QuantizedForm(5, 32, "int8", has_offsets=True),
    "Q6_K": QuantizedForm(6, 16, "int8", zero=32),
    "IQ4_NL": QuantizedForm(4, 32, "float16", code_book=tuple(CODE_BOOK.astype(float).tolist())),
    "IQ4_XS": QuantizedForm(4, 32, "int8", code_book=tuple(CODE_BOOK.astype(float).tolist())),
    **VECTOR_FORMS,
    "TQ1_0": QuantizedForm(2, 256, "float16", zero=1),
    "TQ2_0": QuantizedForm(2, 256, "float16", zero=1),
    "MXFP4": QuantizedForm(4, 32, "e8m0", code_book=tuple(MX_CODE_BOOK.tolist())),
}
QUANTIZED = tuple(FORMS)


@dataclass(frozen=True, slots=True)
class BlockGroups:
    """Blocks taken apart, nothing lost; ``FORMS`` says what codes mean.

    Attributes:
        codes: (B, E) uint8, in the order of the elements.
        scales: (B, G) float16, or int8 times ``super_scales``, or uint8 of E8M0; group g holds
            elements ``[g * E / G, (g + 1) * E / G)``.
        offsets: The same, or None where there are none.
        super_scales, super_offsets: (B, 1) float16, or None.
    """

    codes: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray | None = None
    super_scales: np.ndarray | None = None
    super_offsets: np.ndarray | None = None


def unpack(name: str, blocks: np.ndarray) -> BlockGroups:
    """Take blocks of a quantized type apart.

    Args:
        name: One of :data:`QUANTIZED`.
        blocks: (B, bytes of a block) uint8.
    """
    return _UNPACK[name](np.ascontiguousarray(blocks))


def dequantize(name: str, rows: np.ndarray) -> np.ndarray:
    """Return the float32 values of rows, bit for bit those of ggml's own functions.

    NaN is the value of blocks of MXFP4 whose scale is :data:`MX_SCALE_NAN`.

    Args:
        name: Any of :data:`quire.checkpoints.gguf.gguf_layouts.LAYOUTS`.
        rows: (..., bytes of a row) uint8.

    Returns:
        (..., elements of a row) float32.
    """
    layout = LAYOUTS[name]
    shape = (*rows.shape[:-1], rows.shape[-1] // layout.block_bytes * layout.block_size)
    rows = np.ascontiguousarray(rows)
    if name == "F32":
        return rows.view(np.float32).reshape(shape)
    if name == "F16":
        return rows.view(np.float16).astype(np.float32).reshape(shape)
    if name == "BF16":
        return (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    if name in VECTOR_FORMS:
        return dequantize_vectors(name, rows.reshape(-1, layout.block_bytes)).reshape(shape)
    groups, form = unpack(name, rows.reshape(-1, layout.block_bytes)), FORMS[name]
    stored = SCALE_VALUES[form.scale_type][groups.scales] if name == "MXFP4" else groups.scales
    scales = _numbers(stored, groups.super_scales)
    count, num_groups = scales.shape
    codes = groups.codes.reshape(count, num_groups, -1)
    if form.code_book is not None:
        values: np.ndarray = np.array(form.code_book, np.float32)[codes]
    else:
        values = codes.astype(np.float32) - np.float32(form.zero)
    values *= scales[:, :, None]
    if groups.offsets is not None:
        values += _numbers(groups.offsets, groups.super_offsets)[:, :, None]
    return values.reshape(shape)


def _numbers(scales: np.ndarray, supers: np.ndarray | None) -> np.ndarray:
    """Return scales, times super scales, as float32; the product is exact."""
    numbers = scales.astype(np.float32)
    return numbers if supers is None else numbers * supers.astype(np.float32)


def quantize(name: str, rows: np.ndarray) -> np.ndarray:
    """Return rows as bytes of a type, rounded as ggml's reference functions do.

    Args:
        name: One of :data:`WRITABLE`.
        rows: (..., elements of a row) float32; a row must be a whole number of blocks.

    Returns:
        (..., bytes of a row) uint8.
    """
    layout = LAYOUTS[name]
    shape = (*rows.shape[:-1], rows.shape[-1] // layout.block_size * layout.block_bytes)
    rows = np.ascontiguousarray(rows, np.float32)
    if name == "F32":
        return rows.view(np.uint8).reshape(shape)
    if name == "F16":
        with np.errstate(over="ignore"):
            return rows.astype(np.float16).view(np.uint8).reshape(shape)
    if name == "BF16":
        return to_bfloat16(rows).view(np.uint8).reshape(shape)
    return _QUANTIZE[name](rows.reshape(-1, layout.block_size)).reshape(shape)


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """Return the float16 at byte ``at`` of each block as (B, 1) float16."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16)


def _nibbles(packed: np.ndarray, run: int) -> np.ndarray:
    """Return 4-bit codes: the low halves of ``run`` bytes, then their high halves, and so on."""
    packed = packed.reshape(len(packed), -1, 1, run)
    shifts = np.array([0, 4], np.uint8)[:, None]
    return (packed >> shifts & 15).reshape(len(packed), -1)


def _pairs(packed: np.ndarray, run: int) -> np.ndarray:
    """Return 2-bit codes: the lowest of ``run`` bytes, then the next, and so on."""
    packed = packed.reshape(len(packed), -1, 1, run)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    return (packed >> shifts & 3).reshape(len(packed), -1)


def _bit_planes(packed: np.ndarray) -> np.ndarray:
    """Return single bits: bit 0 of every byte, then bit 1 of every byte, and so on."""
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    return (packed[:, None, :] >> shifts & 1).reshape(len(packed), -1)


def _bits(packed: np.ndarray) -> np.ndarray:
    """Return single bits in the order of a little-endian number."""
    return np.unpackbits(packed, axis=1, bitorder="little")


def _q4_0(blocks: np.ndarray) -> BlockGroups:
    return BlockGroups(_nibbles(blocks[:, 2:], 16), _half(blocks, 0))


def _q4_1(blocks: np.ndarray) -> BlockGroups:
    return BlockGroups(_nibbles(blocks[:, 4:], 16), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: np.ndarray) -> BlockGroups:
    codes = _nibbles(blocks[:, 6:], 16) | _bits(blocks[:, 2:6]) << 4
    return BlockGroups(codes, _half(blocks, 0))


def _q5_1(blocks: np.ndarray) -> BlockGroups:
    codes = _nibbles(blocks[:, 8:], 16) | _bits(blocks[:, 4:8]) << 4
    return BlockGroups(codes, _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: np.ndarray) -> BlockGroups:
    return BlockGroups(blocks[:, 2:] ^ np.uint8(128), _half(blocks, 0))


def _q2_k(blocks: np.ndarray) -> BlockGroups:
    scales, minima = blocks[:, :16] & 15, blocks[:, :16] >> 4
    codes = _pairs(blocks[:, 16:80], 32)
    return _two_levels(codes, scales, minima, _half(blocks, 80), _half(blocks, 82))


def _q3_k(blocks: np.ndarray) -> BlockGroups:
    low, packed = _pairs(blocks[:, 32:96], 32), blocks[:, 96:108]
    codes = low | _bit_planes(blocks[:, :32]) << 2
    scales = _nibbles(packed[:, :8], 8) | _pairs(packed[:, 8:], 4) << 4
    signed = scales.view(np.int8) - np.int8(32)
    return BlockGroups(codes, signed, super_scales=_half(blocks, 108))


def _two_levels(
    codes: np.ndarray, scales: np.ndarray, minima: np.ndarray, d: np.ndarray, dmin: np.ndarray
) -> BlockGroups:
    """Minima are subtracted: their super scale changes its sign."""
    return BlockGroups(codes, scales.view(np.int8), minima.view(np.int8), d, -dmin)


def _scales_and_minima(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the eight 6-bit scales and minima of Q4_K and Q5_K from their 12 bytes.

    ```
    byte 0..3    scale 0..3 in bits 0-5, top bits of scale 4..7 in bits 6-7
    byte 4..7    minimum 0..3 in bits 0-5, top bits of minimum 4..7 in bits 6-7
    byte 8..11   scale 4..7 in bits 0-3, minimum 4..7 in bits 4-7
    ```
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return scales, minima


def _q4_k(blocks: np.ndarray) -> BlockGroups:
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    codes = _nibbles(blocks[:, 16:], 32)
    return _two_levels(codes, scales, minima, _half(blocks, 0), _half(blocks, 2))


def _q5_k(blocks: np.ndarray) -> BlockGroups:
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    codes = _nibbles(blocks[:, 48:], 32) | _bit_planes(blocks[:, 16:48]) << 4
    return _two_levels(codes, scales, minima, _half(blocks, 0), _half(blocks, 2))


def _q6_k(blocks: np.ndarray) -> BlockGroups:
    codes = _nibbles(blocks[:, :128], 64) | _pairs(blocks[:, 128:192], 32) << 4
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return BlockGroups(codes, scales, super_scales=_half(blocks, 208))


def _iq4_nl(blocks: np.ndarray) -> BlockGroups:
    return BlockGroups(_nibbles(blocks[:, 2:], 16), _half(blocks, 0))


def _iq4_xs(blocks: np.ndarray) -> BlockGroups:
    high = (
        np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    )
    low = (blocks[:, 4:8, None] >> np.array([0, 4], np.uint8) & 15).reshape(-1, 8)
    scales = (low | high.astype(np.uint8) << 4).view(np.int8) - np.int8(32)
    return BlockGroups(_nibbles(blocks[:, 8:], 16), scales, super_scales=_half(blocks, 0))


def _tq1_0(blocks: np.ndarray) -> BlockGroups:
    parts = [_trits(blocks[:, :32], 5), _trits(blocks[:, 32:48], 5), _trits(blocks[:, 48:52], 4)]
    return BlockGroups(np.concatenate(parts, axis=1), _half(blocks, 52))


def _trits(packed: np.ndarray, digits: int) -> np.ndarray:
    """Return digits in base 3: the first of every byte, then the next; byte / 256 is 0.d1d2d3..."""
    powers = np.array([3**digit for digit in range(digits)], np.uint8)[:, None]
    rest = packed[:, None, :] * powers
    codes: np.ndarray = (rest.astype(np.uint16) * 3 >> 8).astype(np.uint8)
    return codes.reshape(len(packed), -1)


def _tq2_0(blocks: np.ndarray) -> BlockGroups:
    return BlockGroups(_pairs(blocks[:, :64], 32), _half(blocks, 64))


def _mxfp4(blocks: np.ndarray) -> BlockGroups:
    return BlockGroups(_nibbles(blocks[:, 1:], 16), np.ascontiguousarray(blocks[:, :1]))


_UNPACK: dict[str, Callable[[np.ndarray], BlockGroups]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
    "MXFP4": _mxfp4,
}


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float32 to the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16
    result: np.ndarray = np.where(np.isnan(values), bits >> 16 | 64, rounded).astype(np.uint16)
    return result


def _inverse(scales: np.ndarray) -> np.ndarray:
    """Return 1 / scales, and 0 for 0."""
    with np.errstate(divide="ignore"):
        inverse: np.ndarray = np.where(scales == 0, np.float32(0), np.float32(1) / scales)
    return inverse


def _pack_nibbles(codes: np.ndarray) -> np.ndarray:
    packed: np.ndarray = codes[:, :16] | codes[:, 16:] << 4
    return packed


def _store(scales: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return scales.astype(np.float16).view(np.uint8)


def _quantize_q8_0(blocks: np.ndarray) -> np.ndarray:
    scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    scaled = blocks * _inverse(scales)
    # Halves are rounded away from zero.
    whole = np.trunc(scaled)
    codes = whole + np.trunc((scaled - whole) * 2)
    return np.concatenate([_store(scales), codes.astype(np.int8).view(np.uint8)], axis=1)


def _quantize_q4_0(blocks: np.ndarray) -> np.ndarray:
    largest = np.abs(blocks).argmax(axis=1, keepdims=True)
    scales = np.take_along_axis(blocks, largest, axis=1) / np.float32(-8)
    codes = (blocks * _inverse(scales) + np.float32(8.5)).astype(np.uint8).clip(0, 15)
    return np.concatenate([_store(scales), _pack_nibbles(codes)], axis=1)


def _quantize_q4_1(blocks: np.ndarray) -> np.ndarray:
    minima = blocks.min(axis=1, keepdims=True)
    scales = (blocks.max(axis=1, keepdims=True) - minima) / np.float32(15)
    codes = ((blocks - minima) * _inverse(scales) + np.float32(0.5)).astype(np.uint8).clip(0, 15)
    return np.concatenate([_store(scales), _store(minima), _pack_nibbles(codes)], axis=1)


_QUANTIZE = {"Q8_0": _quantize_q8_0, "Q4_0": _quantize_q4_0, "Q4_1": _quantize_q4_1}
WRITABLE = ("F32", "F16", "BF16", *_QUANTIZE)
