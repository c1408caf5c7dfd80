"""Numbers of few bits as float32, by their codes: what scales and weights of 4 and 8 bits mean.

Source: OCP Microscaling Formats (MX) 1.0; OCP 8-bit Floating Point 1.0.
"""

from __future__ import annotations

import numpy as np


def _numbers(exponent_bits: int, mantissa_bits: int) -> np.ndarray:
    """Return the values of all codes of sign, exponent and mantissa, without special ones."""
    codes = np.arange(1 << 1 + exponent_bits + mantissa_bits)
    exponents = codes >> mantissa_bits & (1 << exponent_bits) - 1
    mantissas = codes & (1 << mantissa_bits) - 1
    bias = (1 << exponent_bits - 1) - 1
    leading = (exponents > 0).astype(np.float64)
    values = (leading + mantissas / (1 << mantissa_bits)) * 2.0 ** (np.maximum(exponents, 1) - bias)
    signed = np.where(codes >> exponent_bits + mantissa_bits, -values, values)
    numbers: np.ndarray = signed.astype(np.float32)
    return numbers


def _e4m3() -> np.ndarray:
    values = _numbers(4, 3)
    values[[0x7F, 0xFF]] = np.nan
    return values


def _e8m0() -> np.ndarray:
    values = 2.0 ** (np.arange(255) - 127.0)
    return np.append(values, np.nan).astype(np.float32)


#: (256,): sign, 4 bits of exponent, 3 of mantissa; up to 448, NaN is 0x7f and 0xff.
E4M3 = _e4m3()
#: (256,): powers of two from 2 ** -127; NaN is 255.
E8M0 = _e8m0()
#: (16,): sign, 2 bits of exponent, 1 of mantissa; up to 6.
E2M1 = _numbers(2, 1)
