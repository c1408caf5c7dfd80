"""Regular expressions for names of modules, as files have them: no match takes long.

``re`` tries all ways to match, of which a pattern of twenty characters has billions, and nothing
else of the process runs meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

#: Longest name; no module has such a one.
MAX_NAME = 512
#: Signs of repetition that ``re`` may try in all ways, where no group is repeated.
MAX_CHEAP_SIGNS = 3
_SIGN = re.compile(r"[*+{]|(?<!\()\?")
_REPEATED_GROUP = re.compile(r"\)[*+{]")
#: Groups in groups.
MAX_DEPTH = 32
_CATEGORIES = {
    ops.CATEGORY_DIGIT: re.compile(r"\d"),
    ops.CATEGORY_NOT_DIGIT: re.compile(r"\D"),
    ops.CATEGORY_WORD: re.compile(r"\w"),
    ops.CATEGORY_NOT_WORD: re.compile(r"\W"),
    ops.CATEGORY_SPACE: re.compile(r"\s"),
    ops.CATEGORY_NOT_SPACE: re.compile(r"\S"),
}
_BEGINNING = (ops.AT_BEGINNING, ops.AT_BEGINNING_STRING)
_ENDING = (ops.AT_END, ops.AT_END_STRING)
_REPEATS = (ops.MAX_REPEAT, ops.MIN_REPEAT)
_ASSERTIONS = (ops.ASSERT, ops.ASSERT_NOT)
_CHARACTERS = (ops.LITERAL, ops.NOT_LITERAL, ops.ANY, ops.IN)


class NamePattern:
    """One expression.

    Args:
        text: Regular expression in Python's language.

    Raises:
        ValueError: The text is not one, or is of a kind that may take long.
    """

    def __init__(self, text: str) -> None:
        try:
            self._pattern = re.compile(text)
            self._items: Any = None
            if len(_SIGN.findall(text)) > MAX_CHEAP_SIGNS or _REPEATED_GROUP.search(text):
                self._items = parser.parse(text)
                _check(self._items, self._pattern.flags)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(str(error)) from None

    def match(self, name: str) -> bool:
        """Return whether a name begins with what the expression means."""
        if len(name) > MAX_NAME:
            return False
        if self._items is None:
            return self._pattern.match(name) is not None
        return bool(_ends(self._items, name, {0}))


def _check(items: Iterable[Any], flags: int = re.UNICODE, depth: int = 0) -> None:
    """Refuse what :func:`_ends` does not know."""
    if depth > MAX_DEPTH or flags != re.UNICODE:
        raise ValueError("groups in too many groups, or flags, next to repetitions")
    for kind, value in items:
        if kind is ops.BRANCH:
            for branch in value[1]:
                _check(branch, depth=depth + 1)
        elif kind is ops.SUBPATTERN and not value[1] and not value[2]:
            _check(value[3], depth=depth + 1)
        elif kind in _REPEATS:
            _check(value[2], depth=depth + 1)
        elif kind in _ASSERTIONS and value[0] == 1:
            _check(value[1], depth=depth + 1)
        elif not (kind is ops.AT and value in (*_BEGINNING, *_ENDING)) and kind not in _CHARACTERS:
            raise ValueError(f"{str(kind).lower()} next to repetitions")


def _ends(items: Iterable[Any], name: str, starts: set[int]) -> set[int]:
    """Return where in a name a match may end that begins at one of ``starts``."""
    for kind, value in items:
        if kind is ops.BRANCH:
            starts = set().union(*(_ends(branch, name, starts) for branch in value[1]))
        elif kind is ops.SUBPATTERN:
            starts = _ends(value[3], name, starts)
        elif kind in _REPEATS:
            starts = _repeated(value, name, starts)
        elif kind in _ASSERTIONS:
            wanted = kind is ops.ASSERT
            starts = {at for at in starts if bool(_ends(value[1], name, {at})) == wanted}
        elif kind is ops.AT:
            starts &= _places(value, name)
        else:
            starts = {at + 1 for at in starts if at < len(name) and _fits(kind, value, name[at])}
    return starts


def _repeated(value: Any, name: str, starts: set[int]) -> set[int]:
    least, most, items = value
    for _ in range(least):
        before, starts = starts, _ends(items, name, starts)
        if starts == before:
            break  # all further ones give the same
    found = new = starts
    for _ in range(most - least):
        new = _ends(items, name, new) - found
        if not new:
            break
        found = found | new
    return found


def _places(kind: Any, name: str) -> set[int]:
    if kind in _BEGINNING:
        return {0}
    return {len(name)} | ({len(name) - 1} if kind is ops.AT_END and name[-1:] == "\n" else set())


def _fits(kind: Any, value: Any, character: str) -> bool:
    """Return whether a part of an expression that is one character means this one."""
    if kind is ops.LITERAL:
        return bool(ord(character) == value)
    if kind is ops.NOT_LITERAL:
        return bool(ord(character) != value)
    if kind is ops.ANY:
        return character != "\n"
    if kind is ops.RANGE:
        return bool(value[0] <= ord(character) <= value[1])
    if kind is ops.CATEGORY:
        return _CATEGORIES[value].match(character) is not None
    negated = value[0][0] is ops.NEGATE
    return any(_fits(one[0], one[1], character) for one in value[negated:]) != negated
