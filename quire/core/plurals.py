"""Counts with their nouns, for messages: ``1 stage``, ``2 stages``."""

from __future__ import annotations

from collections.abc import Iterable


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun in the form that it asks for.

    Args:
        number: The count.
        noun: The noun in the singular.
        plural: The plural where it is not the singular with an ``s``.
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def listed(noun: str, names: Iterable[object]) -> str:
    """Return names after their noun in the form that their number asks for: ``ranks 0, 1``."""
    shown = [*map(str, names)]
    return f"{noun}{'' if len(shown) == 1 else 's'} {', '.join(shown)}"
