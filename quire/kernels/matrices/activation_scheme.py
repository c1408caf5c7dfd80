"""The rule by which a checkpoint wants inputs of a matrix rounded, with its plain definition.

A rule holds for each row (token) of x (T, K) alone, so a row's products do not depend on the rows
that share its batch. Rounded, a row is ``factor * (codes - zero)``: codes are integers of 8 bits,
E4M3 or E2M1 numbers, the factor one number for the row, or one for each group of inputs.

``int8``     codes -128 .. 127, of the row's own factor ``max|x| / 127.5`` or a stored one; with
             zeros ``(max - min) / 255`` and the code that stands for 0
``outliers`` codes -127 .. 127 of the factor ``max|x| / 127`` over the inputs below a threshold;
             the others are not rounded and their codes are 0
``e4m3``     E4M3 numbers of the factor ``max|x| / 448`` of a row or a group, or a stored one; or of
             a power of two for each group (MXFP8)
``e2m1``     E2M1 numbers of the factor ``E4M3(max|x| / 6 * scale) / scale`` of a group, by a stored
             scale (NVFP4); or of a power of two (MXFP4)

``int16`` is no checkpoint's but the engine's own, where 8 bits lose too much: codes -127 .. 127 of
the factor ``max|x| / 127`` of a group, and once more such codes of what these leave over.

Codes are rounded to nearest even and kept within their range. Everything is float32.

Source: compressed-tensors (``calculate_qparams``, ``fake_quantize``); LLM.int8() (Dettmers et al.
2022), where bitsandbytes looks for outliers in whole columns of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: What codes are; the numbers are ActivationCodes of native/include/activation_scheme.h.
CODES = {"int8": 1, "outliers": 2, "e4m3": 3, "e2m1": 4, "int16": 5}
#: Those that are integers.
INTEGERS = ("int8", "outliers")
#: Largest numbers of small floats, and the power of two below.
HIGHEST, LAST_BINADE = {"e4m3": 448.0, "e2m1": 6.0}, {"e4m3": 8, "e2m1": 2}
#: Rows or groups whose largest input is smaller are 0.
SMALLEST = np.float32(1e-30)
#: Inputs of a row, at most, whose integer products fit in 32 bits.
MAX_INTEGER_INPUTS = 1 << 16


@dataclass(frozen=True, slots=True)
class ActivationScheme:
    """One rule.

    Attributes:
        codes: A name of :data:`CODES`.
        group_size: Inputs that share a factor: 16 or a multiple of 32; 0 for all of a row.
        scale: The stored factor, of ``e2m1`` what groups' factors are over; 0 for the row's own.
        zero: The code of 0 where the factor is stored.
        has_zeros: Whether the code of the value 0 is not 0: the stored one, or the row's own.
        threshold: Inputs from that magnitude on are outliers; of ``outliers`` only.
        has_power_factors: Factors of groups are powers of two.
    """

    codes: str
    group_size: int = 0
    scale: float = 0.0
    zero: int = 0
    has_zeros: bool = False
    threshold: float = 0.0
    has_power_factors: bool = False

    def __str__(self) -> str:
        if self.codes == "int16":
            return "inputs in int16"
        if self.codes == "outliers":
            kind = f", outliers from {self.threshold:g} on as they are"
            return f"inputs in int8 by row{kind if np.isfinite(self.threshold) else ''}"
        whose = f"groups of {self.group_size}" if self.group_size else "row"
        if self.scale and not self.group_size:
            whose = "a stored scale"
        kind = f"inputs in {self.codes} by {whose}"
        return f"{kind} with zeros" if self.has_zeros else kind


#: Of the engine's own groups, whatever their size.
FINE = ActivationScheme("int16")


@dataclass(frozen=True, slots=True)
class RoundedRows:
    """Rows x (T, K) by a rule.

    Attributes:
        codes: (T, K) float32, zeros subtracted.
        factors: (T, G) float32, G groups of ``group_size`` inputs.
        group_size: Inputs of a group.
        outliers: (T, K) float32: the inputs that are not rounded, else 0.
    """

    codes: np.ndarray
    factors: np.ndarray
    group_size: int
    outliers: np.ndarray

    def float32(self) -> np.ndarray:
        """Return the rounded rows as (T, K) float32."""
        spread = np.repeat(self.factors, self.group_size, axis=1)[:, : self.codes.shape[1]]
        values: np.ndarray = self.codes * spread + self.outliers
        return values


def round_rows(scheme: ActivationScheme, x: np.ndarray) -> RoundedRows:
    """Round x (T, K) float32; a row with an infinity or NaN becomes NaN."""
    count = x.shape[1]
    size = scheme.group_size or count
    finite = np.where(np.isfinite(x), x, np.float32(0))
    outliers = np.zeros_like(finite)
    if scheme.codes == "outliers":
        above = np.abs(finite) >= np.float32(scheme.threshold)
        outliers, finite = np.where(above, finite, 0), np.where(above, np.float32(0), finite)
    groups = np.pad(finite, ((0, 0), (0, -count % size))).reshape(len(x), -1, size)
    factors, zeros = _factors(scheme, groups)
    divisors = np.where(factors > 0, factors, np.float32(1))[..., None]
    scaled = np.where(factors[..., None] > 0, groups / divisors + zeros[..., None], np.float32(0))
    codes = _to_codes(scheme, scaled) - np.where(factors > 0, zeros, 0)[..., None]
    factors = np.where(np.isfinite(x).all(axis=1, keepdims=True), factors, np.float32(np.nan))
    rounded = codes.reshape(len(x), -1)[:, :count].astype(np.float32)
    return RoundedRows(rounded, factors.astype(np.float32), size, outliers.astype(np.float32))


def _factors(scheme: ActivationScheme, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return factors and codes of 0 of groups (T, G, size), each (T, G) float32."""
    zeros = np.full(groups.shape[:2], np.float32(scheme.zero))
    if scheme.scale and not scheme.group_size:
        return np.full(groups.shape[:2], np.float32(scheme.scale)), zeros
    most = np.abs(groups).max(axis=-1)
    silent = most < SMALLEST
    if not scheme.has_zeros:
        factors = np.where(silent, np.float32(0), _own_factors(scheme, most))
        return factors.astype(np.float32), zeros
    low = np.minimum(groups.min(axis=-1), np.float32(0))
    high = np.maximum(groups.max(axis=-1), np.float32(0))
    factors = np.where(silent, np.float32(0), (high - low) / np.float32(255))
    zeros = np.float32(-128) - low / np.where(silent, np.float32(1), factors)
    return factors, np.rint(np.clip(zeros, -128, 127)).astype(np.float32)


def _own_factors(scheme: ActivationScheme, most: np.ndarray) -> np.ndarray:
    """Return factors of groups by their largest magnitudes, those without zeros."""
    if scheme.has_power_factors:
        bits = most.astype(np.float32).view(np.uint32) + np.uint32(1 << 21)
        powers = (bits >> 23).astype(np.int32) - 127 - LAST_BINADE[scheme.codes]
        return np.ldexp(np.float32(1), powers)
    if scheme.codes == "e2m1":
        scale = np.float32(scheme.scale)
        numbers = round_to_e4m3(most / np.float32(6) * scale)
        return np.where(numbers == 0, np.float32(0.125), numbers) / scale
    highest = {"int8": 127.5, "outliers": 127.0, **HIGHEST}[scheme.codes]
    factors: np.ndarray = most / np.float32(highest)
    return factors


def _to_codes(scheme: ActivationScheme, scaled: np.ndarray) -> np.ndarray:
    if scheme.codes == "e4m3":
        return round_to_e4m3(scaled)
    if scheme.codes == "e2m1":
        return round_to_e2m1(scaled)
    codes: np.ndarray = np.rint(np.clip(scaled, np.float32(-128), np.float32(127)))
    return codes


def round_to_e4m3(x: np.ndarray) -> np.ndarray:
    """Round float32 to E4M3 numbers, to nearest even, at most 448."""
    return _round_to_floats(x, 448, mantissa_bits=3, smallest_exponent=-6)


def round_to_e2m1(x: np.ndarray) -> np.ndarray:
    """Round float32 to E2M1 numbers, to nearest even, at most 6."""
    return _round_to_floats(x, 6, mantissa_bits=1, smallest_exponent=0)


def _round_to_floats(
    x: np.ndarray, highest: float, *, mantissa_bits: int, smallest_exponent: int
) -> np.ndarray:
    size = np.minimum(np.abs(x), np.float32(highest))
    exponents = np.maximum(np.frexp(size)[1] - 1, smallest_exponent)
    step = np.ldexp(np.float32(1), exponents - mantissa_bits)
    rounded: np.ndarray = np.copysign(np.rint(size / step) * step, x).astype(np.float32)
    return rounded
