"""Marks in text that arrives in pieces: what may still become one is held back."""

from __future__ import annotations

#: What formats allow around their marks.
SPACE = " \t\n\r"


def held_back(text: str, mark: str) -> int:
    """Return how many characters at the end of ``text`` may begin ``mark``."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-size:]):
            return size
    return 0
