"""Text that spells a special token without meaning it: found, marked, and tokenized as text.

A tokenizer reads ``<|im_end|>`` as the end of a message wherever it stands. In what users write it
is to be nothing but characters. Each such text is cut after its first character: neither part
spells the token any more, so the parts can be tokenized one after another. All other text stays
whole, and with it its tokens. The idea is llama.cpp's ``parse_special``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from os.path import commonprefix
from typing import Any

from quire.core.errors import RequestError

#: Marks are characters of Unicode's private use, which mean nothing and have no case.
_FIRST_MARK, _NUM_MARKS = 0xF0000, 0xFFFE
#: Shared beginnings within one another that the pattern follows; beyond, it tries one by one.
_MAX_NESTING = 40
#: Characters that are looked through at a time: one long search would hold the interpreter.
_PIECE = 2**16


class SpecialTexts:
    """The texts of a tokenizer's special tokens.

    Args:
        tokens: The special tokens, as text.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        # What is found at a character ends wherever it likes: each is cut after the first.
        found = sorted({token for token in tokens if len(token) > 1})
        first = f"(?={_any_of(found)})(.)"
        self._pattern = re.compile(first, re.DOTALL) if found else None
        self._longest = max(map(len, found), default=0)

    def occur_in(self, value: Any) -> bool:
        """Return whether a special token is spelled in a JSON value, keys included."""
        return any(True for text in _strings(value) for _ in self._places(text))

    def mark(self, value: Any, mark: str) -> Any:
        """Return a copy of a JSON value with ``mark`` wherever it must be cut."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            cuts = [0, *(place + 1 for place in self._places(value)), len(value)]
            return mark.join(value[start:end] for start, end in pairwise(cuts))
        if isinstance(value, Mapping):
            return {self.mark(key, mark): self.mark(item, mark) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mark(item, mark) for item in value]
        return value

    def _places(self, text: str) -> Iterator[int]:
        """Yield where special tokens are spelled."""
        if self._pattern is None:
            return
        for start in range(0, len(text), _PIECE):
            end = start + _PIECE
            for match in self._pattern.finditer(text, start, end + self._longest):
                if match.start() >= end:
                    break
                yield match.start()

    def cut(self, text: str) -> list[str]:
        """Return the parts of a text; the text alone when nothing is spelled in it."""
        mark = unused_mark(text)
        return cut_at(self.mark(text, mark), mark)


def unused_mark(*values: Any) -> str:
    """Return a mark that none of the JSON values holds.

    Raises:
        RequestError: The values hold all marks that there are.
    """
    used: set[str] = set()
    for text in (text for value in values for text in _strings(value) if not text.isascii()):
        for start in range(0, len(text), _PIECE):
            used.update(text[start : start + _PIECE])
    for number in range(_FIRST_MARK, _FIRST_MARK + _NUM_MARKS):
        if chr(number) not in used:
            return chr(number)
    raise RequestError(
        f"[prompt] must leave one of U+{_FIRST_MARK:X} to U+{_FIRST_MARK + _NUM_MARKS - 1:X} "
        "unused; got all of them."
    )


def cut_at(text: str, mark: str) -> list[str]:
    """Return the parts of a rendered text between its marks, written out or as JSON escapes."""
    escaped = json.dumps(mark)[1:-1]
    return text.replace(escaped, mark).split(mark)


def _any_of(texts: Sequence[str], nesting: int = 0) -> str:
    """Return a pattern that finds a text's beginning if it is one of ``texts``, which are sorted.

    What several begin with stands once: a text full of almost special tokens is read once, not once
    for each of hundreds.
    """
    shared = commonprefix(texts)
    if shared in texts:
        return re.escape(shared)
    if nesting == _MAX_NESTING:
        return f"(?:{'|'.join(map(re.escape, texts))})"
    rests = groupby((text[len(shared) :] for text in texts), key=lambda rest: rest[0])
    return f"{re.escape(shared)}(?:{'|'.join(_any_of(list(g), nesting + 1) for _, g in rests)})"


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
