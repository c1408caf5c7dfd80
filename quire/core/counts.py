"""Whole numbers as people write them, with a unit: ``4k``, ``8GiB``; and sizes as text."""

from __future__ import annotations

import re
from fractions import Fraction

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)\s*(?:([kmgt])(i?b)?)?", re.IGNORECASE)


def parse_count(text: str) -> int:
    """Read a whole number with an optional unit: ``4k`` and ``4KiB`` are 4096, ``4kB`` is 4000.

    Raises:
        ValueError: The text is not a number, has an unknown unit, or is not whole.
    """
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    number, unit, suffix = match[1], (match[2] or "").lower(), (match[3] or "").lower()
    value = Fraction(number) * (1000 if suffix == "b" else 1024) ** _POWERS[unit]
    if value.denominator != 1:
        raise ValueError(text)
    return int(value)


def format_bytes(num_bytes: int) -> str:
    """Write a size in the largest unit that keeps it readable, such as ``9.7 MiB``."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"
