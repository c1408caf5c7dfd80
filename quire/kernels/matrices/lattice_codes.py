"""E8P: codes of 16 bits for vectors of 8 weights near the origin of the lattice E8, moved by 1/4.

```
code    bits 8..15  number of a vector A of 8 halves (1/2, 3/2 or 5/2): all with |A| ** 2 <= 10 in
                    ascending order, and 29 of |A| ** 2 = 12; the last is negative where their sum
                    is odd
        bits 0..7   signs, bit 0 for weight 0, then 2, 4, 6, 1, 3, 5, 7; where their number is odd
                    1/4 is subtracted from all weights, else added, and bit 0 stands for its
                    opposite: so the number of signs is even
```
Source: Tseng et al. 2024 (QuIP#), section 4.2; the order of numbers and bits is that of its code
(latticee8_padded12.py). Kernels: native/cpu/quantized_vectors.h.
"""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np

#: Weights of a code.
SIZE = 8
#: Bits of a weight that a kernel looks up, and its code of the value 0: quarters from -11 to 11.
CODE_BITS, ZERO = 5, 16
#: What a quarter is.
STEP = 0.25
#: Of the vectors of norm 12, which weights are 1/2, bit i for weight i; the others are 3/2.
_HALVES = bytes.fromhex("0e0d0b07c8a8986858 38c4a494645434 c2a2926252 31c1a1916151 138c")
#: Which bit of a code stands for each weight's sign.
_SIGN_BITS = np.array([0, 4, 1, 5, 2, 6, 3, 7], np.uint8)


@cache
def vectors() -> np.ndarray:
    """Return A of each number times two, (256, 8) int8, read-only."""
    ball = [v for v in product((1, 3, 5), repeat=SIZE) if sum(x * x for x in v) <= 40]
    rest = [[1 if mask >> i & 1 else 3 for i in range(SIZE)] for mask in _HALVES]
    found = np.array(ball + rest, np.int8)
    found[found.sum(axis=1) // 2 % 2 == 1, 7] *= -1
    found.setflags(write=False)
    return found


@cache
def _odd_bytes() -> np.ndarray:
    """Return whether each byte has an odd number of bits, (256,) bool."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
    odd: np.ndarray = bits.sum(axis=1) % 2 == 1
    return odd


def decode(codes: np.ndarray) -> np.ndarray:
    """Return the weights of codes (..., C) uint16 in quarters: (..., 8 C) int8."""
    numbers, signs = codes >> 8, (codes & 255).astype(np.uint8)
    odd = _odd_bytes()[signs]
    negative = (signs ^ odd)[..., None] >> _SIGN_BITS & 1
    weights: np.ndarray = 2 * vectors()[numbers] * (1 - 2 * negative.astype(np.int8))
    weights += (1 - 2 * odd.astype(np.int8))[..., None]
    return weights.reshape(*codes.shape[:-1], -1)


def encode(numbers: np.ndarray, negative: np.ndarray, subtracted: np.ndarray) -> np.ndarray:
    """Return codes (n,) uint16.

    Args:
        numbers: (n,) of vectors.
        negative: (n, 8) bool, which weights are the opposite of the vector's; an even number.
        subtracted: (n,) bool, whether 1/4 is subtracted.
    """
    signs = (negative.astype(np.uint16) << _SIGN_BITS.astype(np.uint16)).sum(axis=1)
    codes: np.ndarray = numbers.astype(np.uint16) << 8 | signs.astype(np.uint16) ^ subtracted
    return codes.astype(np.uint16)


@cache
def _kernel_order() -> np.ndarray:
    """Return the numbers of vectors as kernels have them: those of even sums come first, (256,)."""
    order: np.ndarray = np.argsort(vectors()[:, 7] < 0, kind="stable")
    return order


def kernel_table() -> np.ndarray:
    """Return codes of vectors in the order of kernels: quarters of abs(A) and 1, (256, 8) uint8."""
    distances: np.ndarray = 2 * np.abs(vectors()[_kernel_order()])
    return (distances + (ZERO + 1)).astype(np.uint8)


def kernel_codes(codes: np.ndarray) -> np.ndarray:
    """Return codes as kernels have them: bits 8..15 a row of :func:`kernel_table`.

    Bits 0..6 are the signs of weights 0 to 6, that of weight 7 makes their number even, or odd in
    the rows from 107 on (native/include/vectors.h). Bit 7 is whether 1/4 is subtracted.
    """
    rows = np.argsort(_kernel_order()).astype(np.uint16) << 8
    every = np.arange(256, dtype=np.uint8)
    odd = _odd_bytes()
    negative = (every ^ odd)[:, None] >> _SIGN_BITS[:7] & 1
    signs = (negative << np.arange(7)).sum(axis=1).astype(np.uint16) | odd.astype(np.uint16) << 7
    made: np.ndarray = rows[codes >> 8] | signs[codes & 255]
    return made
