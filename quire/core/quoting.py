"""Wrong values in messages: their beginnings, at a cost that does not grow with the values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

#: Characters of a value that are shown, and of a whole message.
MAX_SHOWN, MAX_MESSAGE = 80, 8192


def quoted(value: Any, limit: int = MAX_SHOWN) -> str:
    """Return the first characters of the ``repr`` of a value.

    A request may hold texts of megabytes and lists of millions: ``repr`` reads them to the end.
    """
    shown = ""
    for piece in _pieces(value, limit):
        shown += piece
        if len(shown) >= limit:
            break
    return shown[:limit]


def shortened(message: str) -> str:
    """Return a message, cut where it holds too much of what a client or a file says."""
    return message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}..."


def _pieces(value: Any, limit: int) -> Iterator[str]:
    kind = type(value)
    if kind in (str, bytes):
        yield repr(value[:limit])
    elif kind is list:
        yield "["
        for number, item in enumerate(value):
            yield ", " if number else ""
            yield from _pieces(item, limit)
        yield "]"
    elif kind is dict:
        yield "{"
        for number, (key, item) in enumerate(value.items()):
            yield ", " if number else ""
            yield from _pieces(key, limit)
            yield ": "
            yield from _pieces(item, limit)
        yield "}"
    else:
        yield repr(value)
