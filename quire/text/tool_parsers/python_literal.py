"""Python's literals as values of JSON, and the place where one ends in a text that arrives."""

from __future__ import annotations

import re
from typing import Any

from quire.text.json_scanner import MAX_DEPTH

#: Longest whole number, in digits; longer ones take a time that grows with their square.
MAX_DIGITS = 1000
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\\n]|\\[\s\S])*"|'(?:[^'\\\n]|\\[\s\S])*')"""
    r"""|(?P<number>[-+]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"""
    r"""|(?P<word>[A-Za-z]+)|(?P<mark>[\[\](){}:,]))"""
)
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{1,3})|([\s\S]))"
)
_SIMPLE = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a",
    "\\": "\\", "'": "'", '"': '"', "\n": "",
}  # fmt: skip
_CLOSING = {"[": "]", "(": ")", "{": "}"}


class LiteralScanner:
    """Finds the comma or bracket that ends a value, character by character.

    Attributes:
        error: A description of the error; empty without one.
    """

    def __init__(self) -> None:
        self._open: list[str] = []
        self._quote = ""
        self._escaped = False
        self.error = ""

    def feed(self, text: str) -> int | None:
        """Read on; return the position of the end in ``text``, None when it did not come."""
        for position, c in enumerate(text):
            if self._quote:
                if self._escaped:
                    self._escaped = False
                elif c == "\\":
                    self._escaped = True
                elif c == self._quote:
                    self._quote = ""
            elif c in "'\"":
                self._quote = c
            elif c in _CLOSING:
                self._open.append(_CLOSING[c])
                if len(self._open) > MAX_DEPTH:
                    self.error = "they are nested too deeply"
                    return position
            elif not self._open and c in ",)":
                return position
            elif c in "])}" and (not self._open or self._open.pop() != c):
                self.error = f"{c!r} is not expected there"
                return position
        return None


def read_literal(text: str) -> Any:
    """Return the value of a literal: text, numbers, True, False, None, lists, tuples and dicts.

    The names that JSON has for the constants are taken, too.

    Raises:
        ValueError: The text is another expression, or none.
    """
    reader = _Reader(text)
    value = reader.value(0)
    if text[reader.position :].strip():
        raise ValueError("something follows the value")
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self.position = 0

    def _next(self) -> re.Match[str]:
        found = _TOKEN.match(self._text, self.position)
        if found is None:
            raise ValueError("it is no literal")
        self.position = found.end()
        return found

    def _is_next(self, mark: str) -> bool:
        found = _TOKEN.match(self._text, self.position)
        if found is None or found["mark"] != mark:
            return False
        self.position = found.end()
        return True

    def value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError("it is nested too deeply")
        token = self._next()
        if token["text"] is not None:
            parts = [_ESCAPE.sub(_unescaped, token["text"][1:-1])]
            while (more := _TOKEN.match(self._text, self.position)) and more["text"]:
                self.position = more.end()  # Python joins texts that follow each other
                parts.append(_ESCAPE.sub(_unescaped, more["text"][1:-1]))
            return "".join(parts)
        if token["number"] is not None:
            return _number(token["number"])
        if token["word"] is not None:
            if token["word"] not in _WORDS:
                raise ValueError(f"{token['word']} is no literal")
            return _WORDS[token["word"]]
        if token["mark"] == "{":
            return self._dictionary(depth)
        if token["mark"] in ("[", "("):
            return self._list(token["mark"], depth)
        raise ValueError(f"{token['mark']!r} is not expected there")

    def _list(self, opening: str, depth: int) -> Any:
        items: list[Any] = []
        comma = False
        while not self._is_next(_CLOSING[opening]):
            if items and not comma:
                raise ValueError("a comma is missing")
            items.append(self.value(depth + 1))
            comma = self._is_next(",")
        # Parentheses around one value are no tuple.
        return items[0] if opening == "(" and len(items) == 1 and not comma else items

    def _dictionary(self, depth: int) -> dict[str, Any]:
        items: dict[str, Any] = {}
        comma = True
        while not self._is_next("}"):
            if not comma:
                raise ValueError("a comma is missing")
            key = self.value(depth + 1)
            if not isinstance(key, str) or not self._is_next(":"):
                raise ValueError("a dictionary's keys must be text")
            items[key] = self.value(depth + 1)
            comma = self._is_next(",")
        return items


def _number(text: str) -> int | float:
    if text.lstrip("+-").replace("_", "").isdigit():
        if len(text) > MAX_DIGITS:
            raise ValueError("a number has too many digits")
        return int(text)
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("a number is too large")
    return value


def _unescaped(found: re.Match[str]) -> str:
    code = found[1] or found[2] or found[3]
    if code is not None:
        number = int(code, 16)
        if number > 0x10FFFF:
            raise ValueError("there is no such character")
        return chr(number)
    if found[4] is not None:
        return chr(int(found[4], 8))
    return _SIMPLE.get(found[5], found[0])
