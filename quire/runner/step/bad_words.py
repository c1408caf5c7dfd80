"""Tokens that the bad words of requests forbid next; a word of one token is a bias instead."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quire.core.token_words import TokenWords
from quire.kernels.batch.token_table import IntArray, TokenTable
from quire.kernels.cpu.native import native

LongArray = npt.NDArray[np.int64]


class BadWords:
    """Token sequences whose last token is forbidden where a row's output ends with the others.

    A word costs no more than its part that has been generated: the automaton of all words is built
    as outputs reach its states.

    Args:
        tokens: Tokens of all words, one after another.
        starts, lengths: (B,) int64, first token and number of tokens of each word; at least one
            word, of at least two tokens.
    """

    def __init__(self, tokens: IntArray, starts: LongArray, lengths: LongArray) -> None:
        self._beginnings = native.PatternAutomaton(
            tokens, len(tokens), starts, lengths - 1, len(lengths)
        )
        self._row = native.BadWordsRow(self._beginnings)

    @classmethod
    def read(cls, words: TokenWords) -> tuple[list[int], BadWords | None]:
        """Return the words of one token, and the longer ones, or None."""
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
        """Return the tokens that are forbidden after the row's known ``output_ids`` (T,)."""
        at, count = np.zeros(1, np.int32), np.array([len(output_ids)], np.int32)
        (found,) = _forbidden([self], output_ids, at, at, count, count)
        return found

    @staticmethod
    def forbidden_of_rows(
        words: Sequence[BadWords], table: TokenTable, rows: IntArray, lengths: IntArray
    ) -> list[IntArray]:
        """Return the tokens that are forbidden next for each of ``rows`` (B,).

        Args:
            words: Bad words of each row.
            table: Table of known tokens, with proposed ones after them.
            rows: Rows of the table; a row may occur several times.
            lengths: (B,), tokens of the row before the next one.
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
    """Return the forbidden tokens of all rows of ``token_ids`` by one native call."""
    counts = np.empty(len(owners), np.int64)
    followed, width = [one._row for one in owners], token_ids.shape[-1]
    found = native.forbidden_tokens(
        followed, token_ids, width, rows, starts, known, lengths, counts
    )
    return np.split(np.frombuffer(found, np.int32), np.cumsum(counts)[:-1])
