"""Reads ``{"name": ..., "arguments": {...}}`` as it arrives; the marks around are the formats'.

The object may stand in another one as ``function``, the shape of OpenAI's API.
"""

from __future__ import annotations

import json
import re

from quire.text.json_scanner import JsonScanner
from quire.text.tool_parsers.interface import CallDelta

_SPACE = " \t\n\r"
_ARGUMENTS = ("arguments", "parameters")
#: JSON can name it by an escape, and UTF-8 cannot write it.
_HALF = re.compile("[\ud800-\udfff]")


class CallReader:
    """One call's object, whatever the order of its members.

    Args:
        index: The call's place among the answer's calls.
        needs_arguments: Whether an object without arguments is not a call, but other JSON.
        is_inner: Whether the object is the ``function`` of another one.

    Attributes:
        raw: All characters taken, while nothing was given away.
        given: The call was given away, so it can no longer be content.
        complete: Whether the call's arguments were given away to their end.
        done: Whether the object is closed.
        error: The reason why the reader cannot continue; empty while it can.
    """

    def __init__(self, index: int, needs_arguments: bool = False, is_inner: bool = False) -> None:
        self._index = index
        self._needs_arguments = needs_arguments
        self._is_inner = is_inner
        self._inner: CallReader | None = None
        self._step = "open"
        self._scanner = JsonScanner()
        self._value: list[str] = []
        self._key = ""
        self._name: str | None = None
        self._held: list[str] | None = None
        self._closed = False
        self._raw: list[str] = []
        self.given = False
        self.done = False
        self.error = ""

    @property
    def raw(self) -> str:
        """See the attributes."""
        return "".join(self._raw)

    @property
    def complete(self) -> bool:
        """Whether all of its arguments were given away."""
        return self.given and self._closed

    def feed(self, text: str, start: int = 0) -> tuple[int, list[CallDelta]]:
        """Read ``text`` from ``start``; return the position after the last character taken."""
        position, deltas = start, list[CallDelta]()
        while position < len(text) and not self.done and not self.error:
            end = self._read(text, position, deltas)
            if self.given:
                self._raw.clear()
            else:
                self._raw.append(text[position:end])
            position = end
        return position, deltas

    def _read(self, text: str, position: int, deltas: list[CallDelta]) -> int:
        """Take at least one character, or set ``error``."""
        if self._step == "value":
            return self._read_value(text, position, deltas)
        if self._step == "key":
            end = self._scanner.feed(text, position)
            self._value.append(text[position:end])
            if self._scanner.error:
                self.error = self._scanner.error
            elif self._scanner.done:
                self._begin_member()
            return end
        c = text[position]
        if c in _SPACE:
            return position + 1
        return self._read_mark(c, position)

    def _read_mark(self, c: str, position: int) -> int:
        """Take one character of the object's own structure."""
        if self._step == "open" and c == "{":
            self._step = "first_key"
        elif c == "}" and self._step in ("first_key", "separator"):
            self._close()
        elif c == '"' and self._step in ("first_key", "next_key"):
            self._scanner, self._value, self._step = JsonScanner(), [], "key"
            return position  # the scanner takes the quote
        elif c == ":" and self._step == "colon":
            self._scanner, self._value, self._step = JsonScanner(), [], "value"
        elif c == "," and self._step == "separator":
            self._step = "next_key"
        else:
            self.error = f"{c!r} is not expected there"
            return position
        return position + 1

    def _begin_member(self) -> None:
        self._key = json.loads("".join(self._value))
        twice = (self._key == "name" and self._name is not None) or (
            self._key in _ARGUMENTS and self._held is not None
        )
        if twice:
            self.error = f"it has {self._key!r} twice"
        self._step = "colon"

    def _read_value(self, text: str, position: int, deltas: list[CallDelta]) -> int:
        if not self._value and text[position] in _SPACE:
            return position + 1
        end = self._scanner.feed(text, position)
        piece = text[position:end]
        if piece:
            self._value.append(piece)
        is_object = bool(self._value) and self._value[0][0] == "{"
        if self._key in _ARGUMENTS and is_object:
            self._held = self._held or []
            self._held.append(piece)
            self._closed = self._scanner.done
            self._give(deltas)
        elif self._key == "function" and is_object and not self._is_inner:
            read = self._read_inner(piece, deltas)
            if self.error:
                return position + read
        if self._scanner.error:
            self.error = self._scanner.error
        elif self._scanner.done:
            self._end_value(is_object, deltas)
        return end

    def _read_inner(self, piece: str, deltas: list[CallDelta]) -> int:
        """Read a call inside; what turns out to be none is a value like others."""
        if self._inner is None and self._name is None and self._held is None:
            self._inner = CallReader(self._index, self._needs_arguments, is_inner=True)
        if self._inner is None:
            return len(piece)
        inner = self._inner
        read, found = inner.feed(piece)
        deltas += found
        if inner.given:
            self.given, self._closed, self._held = True, inner._closed, []
            self.error = inner.error
        return read

    def _end_value(self, is_object: bool, deltas: list[CallDelta]) -> None:
        self._step = "separator"
        inner, self._inner = self._inner, None
        if inner is not None and (inner.given or inner.done):
            self._name = inner._name
        elif self._key == "name":
            self._name = _text("".join(self._value))
            if not self._name:
                self.error = "its name is no text"
                return
            self._give(deltas)
        elif self._key in _ARGUMENTS and not is_object:
            unquoted = _unquoted("".join(self._value))
            if unquoted is None:
                self.error = "its arguments are no object"
                return
            self._held, self._closed = [unquoted], True
            self._give(deltas)

    def _give(self, deltas: list[CallDelta]) -> None:
        """Give away the arguments held, once the name is known."""
        if self._name is None or not self._held:
            return
        name = None if self.given else self._name
        deltas.append(CallDelta(self._index, name, "".join(self._held)))
        self.given = True
        self._held = []

    def _close(self) -> None:
        if self._name is None:
            self.error = "it has no name"
        elif not self.given and self._needs_arguments:
            self.error = "it has no arguments"
        else:
            self.done = True

    def ending(self) -> list[CallDelta]:
        """Return what a complete object that had a name only still has to give."""
        if self.given:
            return []
        self.given = self._closed = True
        return [CallDelta(self._index, self._name, "{}")]


def _text(value: str) -> str | None:
    """Return the text of a JSON string; None when it is another value, or half of a character."""
    text = json.loads(value) if value[:1] == '"' else None  # a number may have too many digits
    return text if isinstance(text, str) and not _HALF.search(text) else None


def _unquoted(value: str) -> str | None:
    """Return the text of arguments that are no object: null, or a JSON string that has them.

    Returns:
        An empty object where nothing is written; None when it is another value.
    """
    text = _text(value)
    if value == "null" or (text is not None and not text.strip()):
        return "{}"
    try:
        return text if text is not None and isinstance(json.loads(text), dict) else None
    except (ValueError, RecursionError):
        return None
