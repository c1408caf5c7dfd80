"""A tokenizer as llguidance reads it: the tokens' bytes, and how a forced text is tokenized.

This module follows no grammar.
"""

from __future__ import annotations

from collections.abc import Callable

from llguidance import LLTokenizer, TokenizerWrapper

#: Put before a text that cannot be tokenized alone, because the tokenizer puts a space there.
_MARK = "\n"
#: A forced text is tokenized up to this many times the longest token. Its first token is all that
#: is used, and llguidance doubts no more than the last few.
_LONGEST_TOKENS = 8


class GrammarVocabulary(TokenizerWrapper):
    """A tokenizer under the names that llguidance looks for; plain data.

    Args:
        tokens: Bytes of each token id.
        special_token_ids: Ids that stand for no text.
        bos_token_id: Id that begins a sequence; None for a model without one.
        eos_token_ids: Ids that end a sequence, at least one.
        encode: A function that tokenizes a text; where it is None, or changes the text, the
            longest tokens count.
    """

    def __init__(
        self,
        tokens: list[bytes],
        special_token_ids: list[int],
        bos_token_id: int | None,
        eos_token_ids: list[int],
        encode: Callable[[str], list[int]] | None = None,
    ) -> None:
        self.is_tokenizer_wrapper = True
        self.tokens = tokens
        self.special_token_ids = special_token_ids
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_ids[0]
        self.eos_token_ids = eos_token_ids
        self._encode = encode
        self._special = frozenset(special_token_ids)
        self._ids: dict[bytes, int] = {}
        for token_id, token in enumerate(tokens):
            if token and token_id not in self._special:
                self._ids.setdefault(token, token_id)
        self._longest = max(map(len, self._ids), default=1)
        special = self._special.difference(eos_token_ids)
        #: Stands for text that no tokens can write; a grammar never allows it otherwise.
        self.unwritable_id: int | None = min(special, default=None)

    def parts(self) -> tuple[list[bytes], list[int], int | None, list[int]]:
        """Return the arguments of an equal one, but for ``encode``."""
        return (
            list(self.tokens),
            list(self.special_token_ids),
            self.bos_token_id,
            self.eos_token_ids,
        )

    def create_tokenizer(self) -> LLTokenizer:
        """Return llguidance's tokenizer, a trie of the tokens' bytes."""
        return LLTokenizer(self, n_vocab=len(self.tokens), eos_token=self.eos_token_ids)

    def __call__(self, text: str) -> list[int]:
        """Return the tokens that ``text`` begins with; all of them when it is not long.

        Their bytes are the text's: no space before it, and no special token that it spells. Text
        that cannot be written ends them with :attr:`unwritable_id`.
        """
        size = _LONGEST_TOKENS * self._longest
        text = text[:size].encode()[:size].decode(errors="ignore")
        for mark in ("", _MARK):
            ids = self._after(mark, text)
            if ids is not None:
                return ids
        return self._longest_tokens(text.encode())

    def _after(self, mark: str, text: str) -> list[int] | None:
        """Tokenize ``text`` as it stands after ``mark``; None when its bytes do not come out."""
        if self._encode is None:
            return None
        ids, rest = self._encode(mark + text), text.encode()
        start = len(ids)
        while start and rest:
            start -= 1
            token_id = ids[start]
            if token_id >= len(self.tokens) or token_id in self._special:
                return None
            token = self.tokens[token_id]
            if not rest.endswith(token):
                return None
            rest = rest[: len(rest) - len(token)]
        return None if rest or (start and not mark) else ids[start:]

    def _longest_tokens(self, rest: bytes) -> list[int]:
        # NOTE: without the mark of what cannot be written, llguidance would go on after the text.
        found: list[int] = []
        while rest:
            sizes = range(min(self._longest, len(rest)), 0, -1)
            size = next((n for n in sizes if rest[:n] in self._ids), 0)
            if not size:
                return found if self.unwritable_id is None else [*found, self.unwritable_id]
            found.append(self._ids[rest[:size]])
            rest = rest[size:]
        return found
