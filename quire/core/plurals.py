"""Counts with their nouns, for messages: ``1 stage``, ``2 stages``."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun in the form that it asks for.

    Args:
        number: The count.
        noun: The noun in the singular.
        plural: The plural where it is not the singular with an ``s``.
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
