"""Limits on the values in a request's field, checked on its bytes before any is decoded.

A body of 24 MB can hold eight million empty lists. Each is an object to create, check and render,
which holds up all requests for half a minute; no prompt needs them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from quire.core.errors import RequestError

#: Fields that hold what a model reads: they may fill a body with text or token ids.
PROMPT_FIELDS = frozenset(("messages", "prompt", "input", "inputs", "tokens", "text_input"))
#: Fields of pictures and of texts that are judged: a photo has megabytes, but they are not many.
LARGE_FIELDS = frozenset(("images", "documents", "queries", "text_1", "text_2", "data_1", "data_2"))

#: Counted at a time.
PIECE_BYTES = 1 << 18
_NO_MARKS = bytes(set(range(256)) - set(b'"{[,'))


@dataclass(frozen=True, slots=True)
class FieldLimit:
    """The bytes, objects, lists and items that a field's JSON may have at most.

    Attributes:
        num_bytes: None for what a body may have.
        num_nested: Objects and lists.
        num_items: Items of all of them.
    """

    num_bytes: int | None
    num_nested: int
    num_items: int


PROMPT_LIMIT = FieldLimit(None, 1 << 16, 1 << 21)
#: Enough for 1,024 tools with schemas of 16 objects, or all token ids of a large vocabulary.
SETTING_LIMIT = FieldLimit(4 << 20, 1 << 14, 1 << 18)
LARGE_LIMIT = replace(SETTING_LIMIT, num_bytes=None)


def check_field(name: str, raw: msgspec.Raw) -> None:
    """Refuse a field that costs too much to decode.

    Raises:
        RequestError: The field has too many bytes, objects, lists or items.
    """
    limit = LARGE_LIMIT if name in LARGE_FIELDS else SETTING_LIMIT
    limit = PROMPT_LIMIT if name in PROMPT_FIELDS else limit
    data = bytes(raw)
    if limit.num_bytes is not None and len(data) > limit.num_bytes:
        _refuse(name, limit.num_bytes, "bytes", len(data))
    most_nested = data.count(b"{") + data.count(b"[")
    most_items = data.count(b",")
    if most_nested <= limit.num_nested and most_items <= limit.num_items:
        return
    # Those inside strings do not count.
    if _is_more_outside(data, b"{[", limit.num_nested):
        _refuse(name, limit.num_nested, "objects and lists", "more")
    if _is_more_outside(data, b",", limit.num_items):
        _refuse(name, limit.num_items, "items", "more")


def _is_more_outside(data: bytes, characters: bytes, limit: int) -> bool:
    """Return whether valid JSON has more than ``limit`` of some characters outside its strings."""
    count, parity, start = 0, 0, 0
    while start < len(data):
        piece = data[start : start + PIECE_BYTES]
        start += len(piece)
        num_backslashes = len(piece) - len(piece.rstrip(b"\\"))
        if num_backslashes % 2 and start < len(data):  # what it escapes is in the next piece
            piece, start = piece[:-1], start - 1
        marks = piece.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NO_MARKS)
        parts = marks.split(b'"')
        outside = b"".join(parts[parity::2])
        parity = (parity + len(parts) - 1) % 2
        count += sum(outside.count(character) for character in characters)
        if count > limit:
            return True
    return False


def _refuse(name: str, limit: int, what: str, got: object) -> None:
    raise RequestError(f"[{name}] may hold at most {limit} {what}; got {got}.", name)
