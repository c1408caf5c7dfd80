"""The bits of GGUF's types of vector codes: IQ1, IQ2 and IQ3.

Blocks of 256 columns: numbers of a table of vectors, signs, a scale of a few bits for each group,
and a float16 for all. Kernels pack blocks themselves and are tested against this module.

Source: the block structures of ggml (ggml-common.h); the tests compare with the ``gguf`` package.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.kernels.matrices.quantized_tensor import QuantizedForm
from quire.kernels.matrices.vector_codes import VECTOR_CODES
from quire.kernels.matrices.vector_grids import vector_grid

#: How kernels hold each type.
VECTOR_FORMS = {
    name: QuantizedForm(codes.bits, codes.group_size, "odd", zero=codes.zero, vectors=name)
    for name, codes in VECTOR_CODES.items()
}


@dataclass(frozen=True, slots=True)
class VectorBlocks:
    """Blocks taken apart; B blocks, G groups.

    Attributes:
        values: (B, 256) int8: those of the table with their signs; of IQ1 eighths.
        scales: (B, G) uint8, of which ``2 s + 1`` is meant.
        super_scales: (B, 1) float16.
    """

    values: np.ndarray
    scales: np.ndarray
    super_scales: np.ndarray


def unpack_vectors(name: str, blocks: np.ndarray) -> VectorBlocks:
    """Take blocks apart.

    Args:
        name: One of :data:`VECTOR_FORMS`.
        blocks: (B, bytes of a block) uint8.
    """
    blocks = np.ascontiguousarray(blocks)
    if name == "IQ1_M":
        return _iq1_m(blocks)
    d, rest = np.ascontiguousarray(blocks[:, :2]).view(np.float16), blocks[:, 2:]
    if name == "IQ1_S":
        words = _numbers(rest[:, 32:], np.uint16)
        indices = rest[:, :32] | _spread(words, (0, 3, 6, 9), 7) << 8
        return VectorBlocks(_iq1(indices, np.repeat(words >> 15, 4, axis=1)), words >> 12 & 7, d)
    if name == "IQ2_XS":
        words = _numbers(rest[:, :64], np.uint16)
        scales = _spread(rest[:, 64:], (0, 4), 15)
        return VectorBlocks(_signed(name, words & 511, _eighth_sign(words >> 9)), scales, d)
    if name in ("IQ2_XXS", "IQ3_XXS"):
        if name == "IQ2_XXS":
            parts = rest.reshape(-1, 8, 8)
            indices, tail = parts[:, :, :4].reshape(-1, 32), parts[:, :, 4:].reshape(-1, 32)
        else:
            indices, tail = rest[:, :64], rest[:, 64:]
        words = _numbers(tail, np.uint32)
        signs = _eighth_sign(_spread(words, (0, 7, 14, 21), 127))
        return VectorBlocks(_signed(name, indices, signs), words >> 28, d)
    if name == "IQ2_S":
        indices = rest[:, :32] | _spread(rest[:, 64:72], (0, 2, 4, 6), 3).astype(np.uint16) << 8
        signs, scales = rest[:, 32:64], _spread(rest[:, 72:], (0, 4), 15)
    else:
        high = _spread(rest[:, 64:72], tuple(range(8)), 1).astype(np.uint16)
        indices, signs = rest[:, :64] | high << 8, rest[:, 72:104]
        scales = _spread(rest[:, 104:], (0, 4), 15)
    return VectorBlocks(_signed(name, indices, signs), scales, d)


def dequantize_vectors(name: str, blocks: np.ndarray) -> np.ndarray:
    """Return the values of blocks, bit for bit ggml's: (B, 256) float32."""
    parts = unpack_vectors(name, blocks)
    scales = _scale_numbers(name, parts)
    values = parts.values.reshape(*scales.shape, -1).astype(np.float32)
    values *= scales[:, :, None]
    return values.reshape(len(blocks), -1)


def _scale_numbers(name: str, parts: VectorBlocks) -> np.ndarray:
    """Return (B, G) float32; the products are exact."""
    odd = parts.scales.astype(np.float32) * 2 + 1
    step = np.float32(VECTOR_CODES[name].step)
    numbers: np.ndarray = odd * parts.super_scales.astype(np.float32) * step
    return numbers


def _numbers(packed: np.ndarray, dtype: type) -> np.ndarray:
    return np.ascontiguousarray(packed).view(np.dtype(dtype).newbyteorder("<"))


def _spread(packed: np.ndarray, shifts: tuple[int, ...], mask: int) -> np.ndarray:
    """Return the bits of each number at each of ``shifts``, side by side."""
    parts: np.ndarray = packed[:, :, None] >> np.array(shifts, packed.dtype) & packed.dtype.type(
        mask
    )
    return parts.reshape(len(packed), -1)


def _eighth_sign(signs: np.ndarray) -> np.ndarray:
    """Add to seven signs an eighth that makes the number of negative ones even."""
    odd = signs & 127
    for shift in (4, 2, 1):
        odd = odd ^ odd >> shift
    whole: np.ndarray = signs & 127 | (odd & 1) << 7
    return whole.astype(np.uint8)


def _signed(name: str, indices: np.ndarray, signs: np.ndarray) -> np.ndarray:
    values = vector_grid(name)[indices].reshape(len(indices), -1)
    negative = np.unpackbits(np.ascontiguousarray(signs), axis=1, bitorder="little")
    result: np.ndarray = np.where(negative, -values, values)
    return result


def _iq1(indices: np.ndarray, down: np.ndarray) -> np.ndarray:
    """Return vectors of eighths, 1 less where ``down``, else 1 more."""
    values: np.ndarray = vector_grid("IQ1")[indices]
    values += np.where(down, -1, 1).astype(np.int8)[:, :, None]
    return values.reshape(len(indices), -1)


def _iq1_m(blocks: np.ndarray) -> VectorBlocks:
    words = _numbers(blocks[:, 48:], np.uint16)
    high = _spread(blocks[:, 32:48], (0, 4), 15).astype(np.uint16)
    d = (words >> 12 << np.arange(0, 16, 4, dtype=np.uint16)).sum(axis=1, dtype=np.uint16)
    indices = blocks[:, :32] | (high & 7) << 8
    scales = _spread(words, (0, 3, 6, 9), 7)
    return VectorBlocks(_iq1(indices, high >> 3), scales, d[:, None].view(np.float16))
