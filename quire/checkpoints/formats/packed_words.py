"""Codes of few bits packed into 32-bit words, lowest bits first, as GPTQ and others have them."""

from __future__ import annotations

import numpy as np

WORD_BITS = 32
#: Words taken apart at a time where codes cross their borders, which bounds temporaries.
CHUNK = 1 << 18


def unpack_words(words: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Take rows of words apart.

    Args:
        words: (R, W) int32 or uint32.
        bits: Bits of a code, 2, 3, 4 or 8; codes of 3 bits cross the borders of words.
        count: Codes of a row; what is left of its last word is padding.

    Returns:
        (R, count) uint8.
    """
    rows = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1)
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        codes = rows[:, :, None] >> shifts & np.uint8((1 << bits) - 1)
        return np.ascontiguousarray(codes.reshape(len(rows), -1)[:, :count])
    codes = np.empty((len(rows), count), np.uint8)
    weights = (1 << np.arange(bits)).astype(np.uint8)
    step = max(1, CHUNK // max(1, words.shape[1]))
    for first in range(0, len(rows), step):
        part = np.unpackbits(rows[first : first + step], axis=1, bitorder="little")
        part = part[:, : count * bits].reshape(len(part), count, bits)
        codes[first : first + step] = (part * weights).sum(axis=2, dtype=np.uint8)
    return codes


def pack_words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Put rows of codes together; :func:`unpack_words` is the inverse.

    Args:
        codes: (R, C) uint8, below ``2 ** bits``.
        bits: Bits of a code, 2, 3, 4 or 8.

    Returns:
        (R, words_of(C, bits)) int32, padded with 0.
    """
    rows, count = codes.shape
    words = words_of(count, bits)
    packed = np.empty((rows, 4 * words), np.uint8)
    step = max(1, CHUNK // max(1, words))
    for first in range(0, rows, step):
        part = codes[first : first + step]
        digits = np.zeros((len(part), WORD_BITS * words), np.uint8)
        for bit in range(bits):
            digits[:, bit : count * bits : bits] = part >> np.uint8(bit) & np.uint8(1)
        packed[first : first + step] = np.packbits(digits, axis=1, bitorder="little")
    return packed.view(np.int32)


def words_of(count: int, bits: int) -> int:
    """Return how many words ``count`` codes take."""
    return -(-count * bits // WORD_BITS)
