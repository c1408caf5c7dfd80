"""Sequences of token ids as plain bytes: millions of them are copied and sent at once."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TokenWords:
    """Reads as a tuple of tuples of ids.

    Attributes:
        tokens: All ids, one sequence after another; 32-bit integers of this machine.
        lengths: Number of ids of each sequence, in the same form.
    """

    tokens: bytes = b""
    lengths: bytes = b""

    @classmethod
    def of(cls, sequences: Iterable[Iterable[int]]) -> TokenWords:
        """Pack sequences.

        Raises:
            TypeError, OverflowError: The ids are no integers of 32 bits.
        """
        if isinstance(sequences, TokenWords):
            return sequences
        tokens, lengths = array("i"), array("i")
        for ids in sequences:
            if isinstance(ids, str | bytes):
                raise TypeError("texts are no token ids")
            before = len(tokens)
            tokens.extend(ids)
            lengths.append(len(tokens) - before)
        return cls(tokens.tobytes(), lengths.tobytes())

    def __len__(self) -> int:
        return len(self.lengths) // array("i").itemsize

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        tokens, end = memoryview(self.tokens).cast("i"), 0
        for length in memoryview(self.lengths).cast("i"):
            start, end = end, end + length
            yield tuple(tokens[start:end])

    def __add__(self, others: Iterable[Iterable[int]]) -> TokenWords:
        more = TokenWords.of(others)
        return TokenWords(self.tokens + more.tokens, self.lengths + more.lengths)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TokenWords):
            return (self.tokens, self.lengths) == (other.tokens, other.lengths)
        return isinstance(other, Sequence) and tuple(self) == tuple(map(tuple, other))

    def __hash__(self) -> int:
        return hash((self.tokens, self.lengths))

    def __repr__(self) -> str:
        return repr(tuple(self))
