"""Vectors, signs and scales as blocks of IQ1, IQ2 and IQ3: the inverse of ``unpack_vectors``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class VectorChoice:
    """The codes and scales of blocks to pack; B blocks, G groups of a block, 256 inputs.

    Attributes:
        indices: (B, vectors of a block) integers, into the table.
        negative: (B, 256) bool: signs. Of IQ1, of all inputs of a vector whether 1 is subtracted.
        scales: (B, G) uint8, of which ``2 s + 1`` is meant.
        super_scales: (B, 1) float16.
    """

    indices: np.ndarray
    negative: np.ndarray
    scales: np.ndarray
    super_scales: np.ndarray


def pack_vectors(name: str, choice: VectorChoice) -> np.ndarray:
    """Return blocks.

    Args:
        name: One of :data:`quire.kernels.matrices.vector_codes.VECTOR_CODES`.
        choice: The eighth sign of eight is not stored where it makes the number of negative ones
            even.

    Returns:
        (B, bytes of a block) uint8.
    """
    return np.concatenate([np.ascontiguousarray(part) for part in _PACK[name](choice)], axis=1)


def _half(choice: VectorChoice) -> np.ndarray:
    return np.ascontiguousarray(choice.super_scales, "<f2").view(np.uint8)


def _low(choice: VectorChoice) -> np.ndarray:
    return (choice.indices & 255).astype(np.uint8)


def _high(choice: VectorChoice, bits: int, count: int) -> np.ndarray:
    """Return bits of indices above 8, those of ``count`` together in a byte or word."""
    return _together(choice.indices >> 8, bits, count).astype(np.uint8)


def _together(numbers: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Return ``count`` numbers of ``bits`` each as one, the first lowest: uint32."""
    shifts = np.arange(0, bits * count, bits, dtype=np.uint32)
    parts = numbers.astype(np.uint32).reshape(len(numbers), -1, count) << shifts
    joined: np.ndarray = np.bitwise_or.reduce(parts, axis=2)
    return joined


def _signs(choice: VectorChoice) -> np.ndarray:
    """Return eight signs a byte."""
    return np.packbits(choice.negative, axis=1, bitorder="little")


def _nibbles(scales: np.ndarray) -> np.ndarray:
    return _together(scales, 4, 2).astype(np.uint8)


def _words(numbers: np.ndarray, dtype: str) -> np.ndarray:
    return np.ascontiguousarray(numbers.astype(dtype)).view(np.uint8)


def _signs_and_scales(choice: VectorChoice) -> np.ndarray:
    """Return words of four times seven signs and a scale: (B, 8) uint32."""
    words: np.ndarray = (
        _together(_signs(choice) & 127, 7, 4) | choice.scales.astype(np.uint32) << 28
    )
    return words


def _iq2_xxs(choice: VectorChoice) -> list[np.ndarray]:
    words = np.stack([_together(_low(choice), 8, 4), _signs_and_scales(choice)], axis=2)
    return [_half(choice), _words(words.reshape(len(words), -1), "<u4")]


def _iq2_xs(choice: VectorChoice) -> list[np.ndarray]:
    words = choice.indices | (_signs(choice) & 127).astype(np.int32) << 9
    return [_half(choice), _words(words, "<u2"), _nibbles(choice.scales)]


def _iq2_s(choice: VectorChoice) -> list[np.ndarray]:
    codes = [_low(choice), _signs(choice), _high(choice, 2, 4)]
    return [_half(choice), *codes, _nibbles(choice.scales)]


def _iq3_xxs(choice: VectorChoice) -> list[np.ndarray]:
    return [_half(choice), _low(choice), _words(_signs_and_scales(choice), "<u4")]


def _iq3_s(choice: VectorChoice) -> list[np.ndarray]:
    codes = [_low(choice), _high(choice, 1, 8), _signs(choice)]
    return [_half(choice), *codes, _nibbles(choice.scales)]


def _down(choice: VectorChoice) -> np.ndarray:
    """Return (B, 32) whether 1 is subtracted from a vector."""
    return choice.negative[:, ::8]


def _iq1_s(choice: VectorChoice) -> list[np.ndarray]:
    high = _together(choice.indices >> 8, 3, 4)
    tops = choice.scales | _down(choice)[:, ::4] << 3
    return [_half(choice), _low(choice), _words(high | tops.astype(np.uint32) << 12, "<u2")]


def _iq1_m(choice: VectorChoice) -> list[np.ndarray]:
    high = _together(choice.indices >> 8 | _down(choice) << 3, 4, 2).astype(np.uint8)
    half = np.ascontiguousarray(choice.super_scales, "<f2").view("<u2").astype(np.uint32)
    parts = half >> np.arange(0, 16, 4, dtype=np.uint32) & 15
    words = _together(choice.scales, 3, 4) | parts << 12
    return [_low(choice), high, _words(words, "<u2")]


_PACK: dict[str, Callable[[VectorChoice], list[np.ndarray]]] = {
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
}
