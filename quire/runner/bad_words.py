"""Which tokens the bad words of requests forbid next; a word of one token is a bias instead."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quire.core.token_words import TokenWords
from quire.kernels.cpu.native import native
from quire.kernels.token_table import IntArray, TokenTable

LongArray = npt.NDArray[np.int64]


class BadWords:
    """Token sequences whose last token is forbidden where a row's output ends with the others.

    A word costs what of it has been generated: the automaton of all words is made as outputs come
    to its states.

    Args:
        tokens: Tokens of all words, one after another.
        starts, lengths: (B,) int64, of each; at least one word, and two tokens of each.
    """

    def __init__(self, tokens: IntArray, starts: LongArray, lengths: LongArray) -> None:
        self._beginnings = native.PatternAutomaton(
            tokens, len(tokens), starts, lengths - 1, len(lengths)
        )
        self._row = native.BadWordsRow(self._beginnings)

    @classmethod
    def read(cls, words: TokenWords) -> tuple[list[int], BadWords | None]:
        """Return words of one token, and the others if there are any."""
        tokens = np.frombuffer(words.tokens, np.int32)
        lengths = np.frombuffer(words.lengths, np.int32).astype(np.int64)
        starts = np.cumsum(lengths) - lengths
        single, several = lengths == 1, lengths > 1
        others = cls(tokens, starts[several], lengths[several]) if several.any() else None
        return tokens[starts[single]].tolist(), others

    def for_row(self) -> BadWords:
        """Return the same words for the output of another row."""
        other = BadWords.__new__(BadWords)
        other._beginnings, other._row = self._beginnings, native.BadWordsRow(self._beginnings)
        return other

    def forbidden(self, output_ids: IntArray) -> IntArray:
        """Return the tokens that may not come after ``output_ids`` (T,), the row's, known ones."""
        at, count = np.zeros(1, np.int32), np.array([len(output_ids)], np.int32)
        (found,) = _forbidden([self], output_ids, at, at, count, count)
        return found

    @staticmethod
    def forbidden_of_rows(
        words: Sequence[BadWords], table: TokenTable, rows: IntArray, lengths: IntArray
    ) -> list[IntArray]:
        """Return for each of ``rows`` (B,) the tokens that may not come next.

        Args:
            words: Those of each row.
            table: Tokens that are known, and proposed ones after them.
            rows: Rows of the table; one may occur several times.
            lengths: (B,) tokens of the row before the one that comes next.
        """
        starts, known = table.num_prompt_tokens[rows], table.num_tokens[rows]
        return _forbidden(words, table.token_ids, rows, starts, known, lengths)


def _forbidden(
    owners: Sequence[BadWords],
    token_ids: IntArray,
    rows: IntArray,
    starts: IntArray,
    known: IntArray,
    lengths: IntArray,
) -> list[IntArray]:
    """Ask for all rows of ``token_ids`` in one call."""
    counts = np.empty(len(owners), np.int64)
    followed, width = [one._row for one in owners], token_ids.shape[-1]
    found = native.forbidden_tokens(
        followed, token_ids, width, rows, starts, known, lengths, counts
    )
    return np.split(np.frombuffer(found, np.int32), np.cumsum(counts)[:-1])
