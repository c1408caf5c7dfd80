"""Finds the end of a JSON value that arrives in pieces, and the first character that is wrong.

It checks the grammar of RFC 8259 and builds nothing; what it accepted, ``json.loads`` accepts.
"""

from __future__ import annotations

import re

_SPACE = frozenset(" \t\n\r")
_DIGITS = frozenset("0123456789")
_HEX = frozenset("0123456789abcdefABCDEF")
_ESCAPES = frozenset('"\\/bfnrt')
_LITERALS = {"t": "true", "f": "false", "n": "null"}
#: The characters that may follow in each part of a number, and the part they lead to.
_NUMBER = {
    "sign": {"0": "zero", "1-9": "whole"},
    "zero": {".": "point", "e": "exponent"},
    "whole": {"0-9": "whole", ".": "point", "e": "exponent"},
    "point": {"0-9": "fraction"},
    "fraction": {"0-9": "fraction", "e": "exponent"},
    "exponent": {"0-9": "power", "+-": "power_sign"},
    "power_sign": {"0-9": "power"},
    "power": {"0-9": "power"},
}
_NUMBER_ENDS = frozenset({"zero", "whole", "fraction", "power"})
_CLOSING = {"object": "}", "list": "]", "key": ""}
#: At the end of a string's text: half of a character.
_HIGH_SURROGATE = re.compile(r"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}$")
#: Values nested deeper are refused: Python's own reader would give up on them.
MAX_DEPTH = 256


class JsonScanner:
    """Follows one JSON value, character by character.

    Attributes:
        done: Whether the value is complete. A number is complete only when something follows it.
        error: A description of the error; empty without one.
    """

    __slots__ = ("_expect", "_part", "_stack", "done", "error")

    def __init__(self) -> None:
        self._stack: list[str] = []
        self._expect = "value"
        self._part = ""
        self.done = False
        self.error = ""

    @property
    def in_string(self) -> bool:
        """Whether the next character is one of a text or a key."""
        return self._expect == "string" and not self.error

    def feed(self, text: str, start: int = 0) -> int:
        """Read ``text`` from ``start``; return the position after what belongs to the value."""
        for position in range(start, len(text)):
            if not self._take(text[position]):
                return position
            if self.done:
                return position + 1
        return len(text)

    def _take(self, c: str) -> bool:
        """Take one character; False when it does not belong to the value or is wrong."""
        if self._expect == "string":
            return self._in_string(c)
        if self._expect == "number":
            if self._in_number(c):
                return True
            if self._part not in _NUMBER_ENDS:
                return self._wrong(c)
            self._value_ended()
            return False if self.done else self._take(c)
        if self._expect == "literal":
            if not self._part.startswith(c):
                return self._wrong(c)
            self._part = self._part[1:]
            if not self._part:
                self._value_ended()
            return True
        return c in _SPACE or self._in_structure(c)

    def _in_string(self, c: str) -> bool:
        if self._part == "\\":
            if c != "u" and c not in _ESCAPES:
                return self._wrong(c)
            self._part = "uuuu" if c == "u" else ""
        elif self._part:
            if c not in _HEX:
                return self._wrong(c)
            self._part = self._part[1:]
        elif c == "\\":
            self._part = c
        elif c == '"':
            self._string_ended()
        elif c < " ":
            return self._wrong(c)
        return True

    def _in_number(self, c: str) -> bool:
        ways = _NUMBER[self._part]
        for characters in ways:
            if (
                (characters == "0-9" and c in _DIGITS)
                or (characters == "1-9" and c in _DIGITS and c != "0")
                or (characters == "e" and c in "eE")
                or (characters == "+-" and c in "+-")
                or characters == c
            ):
                self._part = ways[characters]
                return True
        return False

    def _in_structure(self, c: str) -> bool:
        expect = self._expect
        if expect in ("value", "first_item"):
            if expect == "first_item" and c == "]":
                return self._closed()
            return self._begin_value(c)
        if expect in ("key", "first_key"):
            if c == '"':
                self._stack.append("key")
                self._expect, self._part = "string", ""
                return True
            return self._closed() if expect == "first_key" and c == "}" else self._wrong(c)
        if expect == "colon":
            self._expect = "value"
            return c == ":" or self._wrong(c)
        closing = "}" if self._stack[-1] == "object" else "]"
        if c == closing:
            return self._closed()
        self._expect = "key" if closing == "}" else "value"
        return c == "," or self._wrong(c)

    def _begin_value(self, c: str) -> bool:
        self._part = ""
        if c == '"':
            self._expect = "string"
        elif c in "{[":
            if len(self._stack) >= MAX_DEPTH:
                self.error = f"it is nested more than {MAX_DEPTH} deep"
                return False
            self._stack.append("object" if c == "{" else "list")
            self._expect = "first_key" if c == "{" else "first_item"
        elif c == "-" or c in _DIGITS:
            self._expect = "number"
            self._part = "sign" if c == "-" else "zero" if c == "0" else "whole"
        elif c in _LITERALS:
            self._expect, self._part = "literal", _LITERALS[c][1:]
        else:
            return self._wrong(c)
        return True

    def _string_ended(self) -> None:
        if self._stack and self._stack[-1] == "key":
            self._stack.pop()
            self._expect = "colon"
        else:
            self._value_ended()

    def _closed(self) -> bool:
        self._stack.pop()
        self._value_ended()
        return True

    def _value_ended(self) -> None:
        self._part = ""
        self._expect = "separator"
        self.done = not self._stack

    def _wrong(self, c: str) -> bool:
        self.error = f"{c!r} is not expected there"
        return False


def complete_json(text: str) -> str | None:
    """Return the shortest JSON value that begins with ``text``; None where none does.

    Half an escape and a comma with nothing after it are left out; a missing value is null.
    """
    scanner = JsonScanner()
    if scanner.feed(text) < len(text) or scanner.error:
        return None
    expect, part, stack, last = scanner._expect, scanner._part, scanner._stack, ""
    if expect == "string":
        if part:
            text = text[: -1 if part == "\\" else len(part) - len("\\uXXXX")]
        if _HIGH_SURROGATE.search(text):
            text = text[: -len("\\uXXXX")]
        last = '"'
        if stack and stack[-1] == "key":
            last += ": null"
    elif expect == "number" and part not in _NUMBER_ENDS:
        last = "0"
    elif expect == "literal":
        last = part
    elif text.rstrip().endswith(","):
        text = text.rstrip()[:-1]
    elif expect in ("value", "colon"):
        last = "null" if expect == "value" else ": null"
    return text + last + "".join(_CLOSING[one] for one in reversed(stack))
