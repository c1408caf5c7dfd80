"""Suggestions of what a user may have meant by a name that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

#: Characters of a name that are compared: what that takes grows with their square.
MAX_NAME = 200


def did_you_mean(name: str, known: Iterable[str], most: int = 1) -> str:
    """Return `` Did you mean X?`` for the nearest known names, empty where none is near.

    Args:
        name: The name that the user wrote.
        known: Names that would be right.
        most: Names that are shown.
    """
    near = get_close_matches(name[:MAX_NAME], list(known), most)
    return f" Did you mean {' or '.join(near)}?" if near else ""
