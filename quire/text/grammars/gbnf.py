"""llama.cpp's grammars as Lark: their texts and classes read here, the rest by llguidance.

Source of the syntax: llama.cpp's grammars/README.md and src/llama-grammar.cpp, November 2026.
"""

from __future__ import annotations

import re

from llguidance.gbnf_to_lark import gbnf_to_lark

from quire.core.errors import RequestError

_ESCAPED = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]"}
_CHARACTER = re.compile(
    r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))|([^\\])", re.DOTALL
)
#: Outside of texts and classes: what needs no reading, comments, and the beginnings of both.
_OUTSIDE = re.compile(r"[^\"\[.#]+|#[^\r\n]*|[\"\[.]")
_ANY = "[\\x00-\U0010ffff]"


def to_lark(grammar: str) -> str:
    """Return a grammar of GBNF as Lark.

    Raises:
        RequestError: The text is not a grammar of GBNF.
    """
    try:
        lark: str = gbnf_to_lark(_plain(grammar))
    except Exception as error:  # the converter raises plain ones
        reason = " ".join(str(error).split())[:300]
        raise RequestError(
            f"[structured_outputs] grammar must be valid GBNF ({reason}).", "structured_outputs"
        ) from error
    return lark


def _plain(grammar: str) -> str:
    """Write texts and classes with the escapes that mean the same to Lark and to the converter."""
    made, at = [], 0
    while at < len(grammar):
        found = _OUTSIDE.match(grammar, at)
        assert found is not None
        text, at = found[0], found.end()
        if text == '"':
            characters, at = _characters(grammar, at, '"')
            text = f'"{"".join(_in_text(code) for code, _ in characters)}"'
        elif text == "[":
            text, at = _class(grammar, at)
        made.append(_ANY if text == "." else text if text[0] != "#" else "")
    return "".join(made)


def _characters(grammar: str, at: int, end: str) -> tuple[list[tuple[int, bool]], int]:
    """Read characters up to ``end``; return each with whether it was escaped, and the place."""
    found = []
    while not grammar.startswith(end, at):
        match = _CHARACTER.match(grammar, at)
        if match is None:
            raise ValueError(f"a text or a class has no end: {grammar[at - 1 : at + 19]!r}")
        digits, plain = match[1] or match[2] or match[3], match[5]
        if match[4] is not None and match[4] not in _ESCAPED:
            raise ValueError(f"\\{match[4]} is no escape sequence")
        code = int(digits, 16) if digits else ord(plain or _ESCAPED[str(match[4])])
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise ValueError(f"U+{code:04X} is no character")
        found.append((code, plain is None))
        at = match.end()
    return found, at + 1


def _class(grammar: str, at: int) -> tuple[str, int]:
    """Return a class of characters and the place after it."""
    negated = grammar.startswith("^", at)
    characters, end = _characters(grammar, at + negated, "]")
    made, number = [], 0
    while number < len(characters):
        low = high = characters[number][0]
        number += 1
        if characters[number : number + 1] == [(ord("-"), False)] and number + 1 < len(characters):
            high = characters[number + 1][0]
            number += 2
        if low > high:
            raise ValueError(f"the range {chr(low)}-{chr(high)} is backwards")
        made.append(_in_class(low) if low == high else f"{_in_class(low)}-{_in_class(high)}")
    if not made:
        raise ValueError("a class must have characters")
    return f"[{'^' if negated else ''}{''.join(made)}]", end


def _in_text(code: int) -> str:
    character = chr(code)
    if character in '"\\':
        return f"\\{character}"
    return f"\\x{code:02x}" if code < 0x20 or code == 0x7F else character


def _in_class(code: int) -> str:
    character = chr(code)
    return character if code >= 0x80 or character.isalnum() else f"\\x{code:02x}"
