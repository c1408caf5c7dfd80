"""Codes and scales as blocks of GGUF's types: the inverse of ``gguf_types.unpack``.

B blocks, E elements of a block, G groups of a block.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quire.checkpoints.gguf.gguf_types import BlockGroups


def pack(name: str, groups: BlockGroups) -> np.ndarray:
    """Return blocks.

    Args:
        name: One of :data:`PACKABLE`.
        groups: Groups as :func:`quire.checkpoints.gguf.gguf_types.unpack` returns them.

    Returns:
        (B, bytes of a block) uint8.
    """
    return np.concatenate(_PACK[name](groups), axis=1)


def _nibbles(codes: np.ndarray, run: int) -> np.ndarray:
    """Put ``run`` codes of 4 bits into the low halves of bytes, the next into the high halves."""
    parts = codes.reshape(len(codes), -1, 2, run)
    packed: np.ndarray = parts[:, :, 0] & 15 | parts[:, :, 1] << 4
    return packed.reshape(len(codes), -1)


def _pairs(codes: np.ndarray, run: int) -> np.ndarray:
    """Put ``run`` codes of 2 bits into bits 0 and 1 of bytes, the next into 2 and 3, and so on."""
    parts = (codes & 3).reshape(len(codes), -1, 4, run)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    packed: np.ndarray = np.bitwise_or.reduce(parts << shifts, axis=2)
    return packed.reshape(len(codes), -1)


def _bit_planes(bits: np.ndarray) -> np.ndarray:
    """Put 32 bits into bit 0 of bytes, the next 32 into bit 1, and so on."""
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    packed: np.ndarray = np.bitwise_or.reduce(bits.reshape(-1, 8, 32) << shifts, axis=1)
    return packed


def _bits(bits: np.ndarray) -> np.ndarray:
    """Put bits into a little-endian number."""
    return np.packbits(bits, axis=1, bitorder="little")


def _half(numbers: np.ndarray | None) -> np.ndarray:
    assert numbers is not None
    return np.ascontiguousarray(numbers).view(np.uint8)


def _bytes(numbers: np.ndarray | None) -> np.ndarray:
    assert numbers is not None
    return numbers.view(np.uint8)


def _minus(numbers: np.ndarray | None) -> np.ndarray:
    assert numbers is not None
    return _half(-numbers)


def _fifth(codes: np.ndarray) -> np.ndarray:
    return _bits(codes >> 4)


def _q4_0(groups: BlockGroups) -> list[np.ndarray]:
    return [_half(groups.scales), _nibbles(groups.codes, 16)]


def _q4_1(groups: BlockGroups) -> list[np.ndarray]:
    return [_half(groups.scales), _half(groups.offsets), _nibbles(groups.codes, 16)]


def _q5_0(groups: BlockGroups) -> list[np.ndarray]:
    return [_half(groups.scales), _fifth(groups.codes), _nibbles(groups.codes, 16)]


def _q5_1(groups: BlockGroups) -> list[np.ndarray]:
    numbers = [_half(groups.scales), _half(groups.offsets)]
    return [*numbers, _fifth(groups.codes), _nibbles(groups.codes, 16)]


def _q8_0(groups: BlockGroups) -> list[np.ndarray]:
    return [_half(groups.scales), groups.codes ^ np.uint8(128)]


def _q2_k(groups: BlockGroups) -> list[np.ndarray]:
    scales = _bytes(groups.scales) | _bytes(groups.offsets) << 4
    supers = [_half(groups.super_scales), _minus(groups.super_offsets)]
    return [scales, _pairs(groups.codes, 32), *supers]


def _q3_k(groups: BlockGroups) -> list[np.ndarray]:
    scales = (groups.scales + np.int8(32)).view(np.uint8)
    packed = [_nibbles(scales, 8), _pairs(scales >> 4, 4)]
    codes = [_bit_planes(groups.codes >> 2), _pairs(groups.codes, 32)]
    return [*codes, *packed, _half(groups.super_scales)]


def _scales_and_minima(groups: BlockGroups) -> list[np.ndarray]:
    """Return 6-bit scales and minima in 12 bytes; see ``gguf_types``."""
    scales, minima = _bytes(groups.scales), _bytes(groups.offsets)
    first = scales[:, :4] | scales[:, 4:] >> 4 << 6
    second = minima[:, :4] | minima[:, 4:] >> 4 << 6
    third = scales[:, 4:] & 15 | minima[:, 4:] << 4
    return [_half(groups.super_scales), _minus(groups.super_offsets), first, second, third]


def _q4_k(groups: BlockGroups) -> list[np.ndarray]:
    return [*_scales_and_minima(groups), _nibbles(groups.codes, 32)]


def _q5_k(groups: BlockGroups) -> list[np.ndarray]:
    high = _bit_planes(groups.codes >> 4)
    return [*_scales_and_minima(groups), high, _nibbles(groups.codes, 32)]


def _q6_k(groups: BlockGroups) -> list[np.ndarray]:
    codes = [_nibbles(groups.codes, 64), _pairs(groups.codes >> 4, 32)]
    return [*codes, _bytes(groups.scales), _half(groups.super_scales)]


def _iq4_xs(groups: BlockGroups) -> list[np.ndarray]:
    scales = (groups.scales + np.int8(32)).view(np.uint8)
    low, high = _nibbles(scales, 1), _pairs(scales >> 4, 1)
    return [_half(groups.super_scales), high, low, _nibbles(groups.codes, 16)]


def _tq1_0(groups: BlockGroups) -> list[np.ndarray]:
    codes = groups.codes
    parts = [_trits(codes[:, :160], 5), _trits(codes[:, 160:240], 5), _trits(codes[:, 240:], 4)]
    return [*parts, _half(groups.scales)]


def _trits(codes: np.ndarray, digits: int) -> np.ndarray:
    """Return digits in base 3 as fractions of 256, rounded up; see ``gguf_types``."""
    powers = 3 ** np.arange(4, 4 - digits, -1, dtype=np.uint16)
    parts = codes.reshape(len(codes), digits, -1).astype(np.uint16) * powers[:, None]
    packed: np.ndarray = (parts.sum(axis=1) * 256 + 242) // 243
    return packed.astype(np.uint8)


def _tq2_0(groups: BlockGroups) -> list[np.ndarray]:
    return [_pairs(groups.codes, 32), _half(groups.scales)]


def _mxfp4(groups: BlockGroups) -> list[np.ndarray]:
    return [groups.scales, _nibbles(groups.codes, 16)]


_PACK: dict[str, Callable[[BlockGroups], list[np.ndarray]]] = {
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
    "IQ4_NL": _q4_0,
    "IQ4_XS": _iq4_xs,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
    "MXFP4": _mxfp4,
}
PACKABLE = tuple(_PACK)
