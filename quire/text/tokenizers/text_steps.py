"""A decoder's steps on the whole text, once tokens are joined, for text that arrives in pieces.

The results joined are what the step makes of the whole text.
"""

from __future__ import annotations

from typing import Protocol

from quire.text.marks import held_back


class TextStep(Protocol):
    """One step of one text."""

    def add(self, text: str) -> str:
        """Take the next text and return what is certain now."""
        ...

    def flush(self) -> str:
        """Return what was held back; the text has ended."""
        ...


class Replacing:
    """Write ``new`` for each ``old``, from the left."""

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new
        self._held = ""

    def add(self, text: str) -> str:
        """See :class:`TextStep`."""
        *whole, rest = (self._held + text).split(self._old)
        keep = held_back(rest, self._old)
        self._held = rest[len(rest) - keep :]
        return self._new.join([*whole, rest[: len(rest) - keep]])

    def flush(self) -> str:
        """See :class:`TextStep`."""
        held, self._held = self._held, ""
        return held


class Stripping:
    """Leave out up to ``start`` characters ``content`` at the start, and ``stop`` at the end."""

    def __init__(self, content: str, start: int, stop: int) -> None:
        self._content, self._start, self._stop = content, start, stop
        self._held = ""

    def add(self, text: str) -> str:
        """See :class:`TextStep`."""
        while self._start and text:
            if text[0] != self._content:
                self._start = 0
                break
            text, self._start = text[1:], self._start - 1
        if not self._stop:
            return text
        text = self._held + text
        keep = min(len(text) - len(text.rstrip(self._content)), self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """See :class:`TextStep`."""
        self._held = ""
        return ""
