"""Two vocabularies side by side: a draft's tokens for the target's text, and the way back.

V vocabulary of the target, W of the draft.

Source: Timor et al. 2025 (lossless speculative decoding for heterogeneous vocabularies).
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from quire.core.speculative_config import DraftVocabulary
from quire.kernels.batch.token_table import IntArray

#: Draft tokens at the end of a text that further text may change, and those after which a word
#: that begins among them is where the text is cut for good.
OPEN_TOKENS = 8
MAX_OPEN_TOKENS = 32
#: Known tokens that are tokenized again together with what a draft has written after them.
JOINED_TOKENS = 8


class TextVocabulary(Protocol):
    """A tokenizer, as far as a draft's text is concerned."""

    @property
    def vocab_size(self) -> int:
        """Number that all ids are below."""
        ...

    @property
    def bos_token_id(self) -> int | None:
        """Id of the token that begins a text, or None."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a text."""
        ...

    def encode_after(self, text: str) -> list[int]:
        """Return the tokens of a text that follows another one."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token; empty for an id that does not exist."""
        ...

    def token_to_id(self, token: str | None) -> int | None:
        """Return the id of a vocabulary string, or None."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Return whether the token is no text."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class VocabularyPair:
    """A target's vocabulary and that of its draft.

    Attributes:
        target, draft: Both vocabularies.
        way: The way in which proposals become the target's tokens: ``intersection`` or ``text``.
        target_ids, draft_ids: (N,) tokens of the same bytes, in both.
        start: The draft's tokens that a text begins with.
    """

    target: TextVocabulary
    draft: TextVocabulary
    way: DraftVocabulary
    target_ids: IntArray
    draft_ids: IntArray
    start: tuple[int, ...]

    def draft_token(self, target_id: int) -> int | None:
        """Return the draft's token that is spelled as one of the target's, or None."""
        return _same_token(self.target, target_id, self.draft)

    def target_token(self, draft_id: int) -> int | None:
        """Return the target's token that is spelled as one of the draft's, or None."""
        return _same_token(self.draft, draft_id, self.target)

    def proposed_tokens(self, known: IntArray, drafted: Sequence[int]) -> list[int]:
        """Return the target's tokens (T,) of what a draft has written.

        Args:
            known: The target's tokens before it; they end with a whole character.
            drafted: The draft's tokens; a special one ends them.
        """
        words = [token for token in drafted if not self.draft.is_special(token)]
        written = b"".join(map(self.draft.token_bytes, words))
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(written)  # whole characters
        found = self._joined(known, text) if text else []
        if len(words) < len(drafted):
            last = self.target_token(drafted[-1])
            found += [] if last is None else [last]
        return found

    def _joined(self, known: IntArray, text: str) -> list[int]:
        """Tokenize a text after the tokens before it, whose last word it may continue."""
        tail: list[int] = []
        for token in known[: -JOINED_TOKENS - 1 : -1].tolist():
            if self.target.is_special(token):
                break
            tail.insert(0, token)
            if self.target.token_bytes(token)[:1].isspace():
                break
        before = b"".join(map(self.target.token_bytes, tail)).decode(errors="replace")
        together = self.target.encode_after(before + text)
        if together[: len(tail)] == tail:
            return together[len(tail) :]
        return self.target.encode_after(text)


class DraftText:
    """One sequence's text in the draft's tokens, kept up with the target's.

    Args:
        pair: The target's and the draft's vocabulary.

    Attributes:
        is_whole: Whether the target's tokens end with a whole character.
    """

    def __init__(self, pair: VocabularyPair) -> None:
        self._pair = pair
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_followed = 0
        self._num_closed = 0  # tokens that further text does not change
        self._open = ""  # the text after these
        self.is_whole = True

    def follow(self, known: IntArray) -> tuple[int, list[int]]:
        """Take the target's tokens, those of the call before at their beginning.

        Args:
            known: (T,) all of the target's tokens.

        Returns:
            Index from which the draft's tokens may differ from those before, and all tokens from
            there on.
        """
        pair, target, first = self._pair, self._pair.target, self._num_closed
        closed: list[int] = []
        if not self._num_followed:
            closed += pair.start
        for position in range(self._num_followed, len(known)):
            token = int(known[position])
            if not target.is_special(token):
                self._open += self._decoder.decode(target.token_bytes(token))
                continue
            if position == 0 and pair.start and token == target.bos_token_id:
                continue
            same = pair.draft_token(token)
            if same is None:
                self._open += target.token_bytes(token).decode(errors="replace")
            else:
                self._open += self._decoder.decode(b"", True)
                closed += self._encode(first + len(closed))
                closed.append(same)
                self._open = ""
        self._num_followed = len(known)
        self.is_whole = not self._decoder.getstate()[0]
        tail = self._encode(first + len(closed))
        cut = self._find_cut(tail)
        self._num_closed = first + len(closed) + cut
        return first, closed + tail

    def _encode(self, num_before: int) -> list[int]:
        draft, text = self._pair.draft, self._open
        if not text:
            return []
        return draft.encode_after(text) if num_before else draft.encode(text, False)

    def _find_cut(self, tail: list[int]) -> int:
        """Return how many of the last tokens are final, and forget their text."""
        if len(tail) <= MAX_OPEN_TOKENS:
            return 0
        pieces = [self._pair.draft.token_bytes(token) for token in tail]
        text, whole = self._open.encode(), b"".join(pieces)
        left = 0
        for cut in range(len(tail) - 1, 0, -1) if whole.endswith(text) else ():
            left += len(pieces[cut])
            if cut <= len(tail) - OPEN_TOKENS and pieces[cut][:1].isspace():
                self._open = text[len(text) - left :].decode()
                return cut
        if len(tail) <= 4 * MAX_OPEN_TOKENS:
            return 0
        self._open = ""
        return len(tail)


def pair_vocabularies(
    target: TextVocabulary, draft: TextVocabulary, way: DraftVocabulary | None
) -> VocabularyPair:
    """Compare two vocabularies.

    Args:
        target, draft: Both vocabularies.
        way: ``intersection`` or ``text``; None: the first where it has most of the target's tokens.
    """
    ours, theirs = _ids_by_token(target), _ids_by_token(draft)
    common = sorted(ours.keys() & theirs.keys(), key=ours.__getitem__)
    if way is None:
        way = "intersection" if 2 * len(common) >= len(ours) else "text"
    alone, whole = draft.encode("a", False), draft.encode("a")
    start = next(i for i in range(len(whole)) if whole[i:][: len(alone)] == alone)
    return VocabularyPair(
        target,
        draft,
        way,
        np.array([ours[token] for token in common], np.int32),
        np.array([theirs[token] for token in common], np.int32),
        tuple(whole[:start]),
    )


def _ids_by_token(vocabulary: TextVocabulary) -> dict[tuple[bool, bytes], int]:
    """Return the tokens by what they stand for.

    Of two that stand for the same bytes it is the later: byte tokens, which texts are made of only
    where there is nothing longer, come first in vocabularies that have them.
    """
    found = {}
    for token_id in range(vocabulary.vocab_size):
        piece = vocabulary.token_bytes(token_id)
        if piece:
            found[vocabulary.is_special(token_id), piece] = token_id
    return found


def _same_token(vocabulary: TextVocabulary, token_id: int, other: TextVocabulary) -> int | None:
    return other.token_to_id(vocabulary.token_bytes(token_id).decode(errors="replace"))
