"""Token ids to text as they come, each character once and whole; it knows no stop strings."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from quire.text.tokenizers.token_bytes import Pieces


class Detokenizer:
    """The text of one sequence, in deltas.

    The deltas joined are exactly the decoding of all ids: bytes that may still become a character
    are held back, and only bytes that never can are shown as U+FFFD. Each token costs its own
    length, whatever came before it.

    Args:
        pieces: Bytes of the tokens (``Tokenizer.pieces``).
        skip_special_tokens: Whether to leave special tokens out of the text.
        continues: The text goes on after a prompt, so the space before its first word stays.
    """

    __slots__ = ("_at_start", "_decoder", "_pieces", "_skip", "_steps")

    def __init__(
        self, pieces: Pieces, *, skip_special_tokens: bool = True, continues: bool = False
    ) -> None:
        self._pieces = pieces
        self._skip = skip_special_tokens
        self._at_start = not continues
        self._steps = pieces.text_steps(continues)
        self._decoder = codecs.getincrementaldecoder("utf-8")(pieces.errors)

    def add(self, token_ids: Iterable[int]) -> str:
        """Take the next ids and return the text that is certain now; may be empty."""
        pieces = self._pieces
        found = []
        for token_id in token_ids:
            if self._skip and token_id in pieces.special_ids:
                continue
            if self._at_start and token_id in pieces:
                self._at_start = False
                found.append(pieces.at_start(token_id))
            else:
                found.append(pieces[token_id])
        text = self._decoder.decode(b"".join(found))
        for step in self._steps:
            text = step.add(text)
        return text

    def flush(self) -> str:
        """Return what was held back, bytes as U+FFFD; the sequence has ended."""
        text = self._decoder.decode(b"", final=True)
        for step in self._steps:
            text = step.add(text) + step.flush()
        return text
