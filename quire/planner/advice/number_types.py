"""Types of numbers that weights are stored as: their bits and their range, scales not counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NumberType:
    """A type of number.

    Attributes:
        name: The type's usual name.
        bits: Bits of a number.
        least, largest: The least and the largest finite value.
    """

    name: str
    bits: int
    least: float
    largest: float

    def bytes_of(self, count: int) -> float:
        """Return what that many numbers take."""
        return count * self.bits / 8

    @property
    def saving(self) -> float:
        """The share of float32's bytes that it saves."""
        return 1 - self.bits / 32


_FP32, _BF16 = (2 - 2**-23) * 2.0**127, (2 - 2**-7) * 2.0**127
#: Source: IEEE 754; OCP 8-bit floating point; QLoRA (Dettmers et al. 2023) for NF4.
NUMBER_TYPES = (
    NumberType("FP32", 32, -_FP32, _FP32),
    NumberType("FP16", 16, -65504, 65504),
    NumberType("BF16", 16, -_BF16, _BF16),
    NumberType("FP8 E4M3", 8, -448, 448),
    NumberType("INT8", 8, -128, 127),
    NumberType("INT4", 4, -8, 7),
    NumberType("NF4", 4, -1, 1),
)
