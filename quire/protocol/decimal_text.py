"""Whole numbers that stand in text: of a query, a header, a key of an object."""

from __future__ import annotations


def read_decimal(text: str, most: int) -> int | None:
    """Return the number that ``text`` is in ASCII digits; None when it is not, or above ``most``.

    However long the text is, this costs no more than a look at it: ``int`` refuses thousands of
    digits with an error of its own.
    """
    digits = text.lstrip("0") or text[:1]
    if not (text.isascii() and text.isdecimal()) or len(digits) > len(str(most)):
        return None
    number = int(digits)
    return number if number <= most else None
