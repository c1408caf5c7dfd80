"""Tokens proposed by a model with another vocabulary, which reads the target's text in its own.

A text has another number of tokens there, so that the draft has a token table and blocks of its
own. V vocabulary of the target, W of the draft, B rows of the target's table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from quire.core.model.forward_work import ForwardWork
from quire.kernels.backend import Array, KVCache
from quire.kernels.batch.token_table import IntArray, TokenTable
from quire.models.decoder import Decoder
from quire.speculative.drafters.draft_model import DraftModelProposer
from quire.speculative.drafters.draft_prefill import MOST_TOKENS
from quire.speculative.drafters.vocabularies import DraftText, VocabularyPair
from quire.speculative.proposer import DraftDraw


@dataclass(slots=True)
class _Sequence:
    """A row of the target's table.

    Attributes:
        row: Row of the draft's table.
        text: Text of the target's tokens.
        drafted: The draft's tokens after it, in this round.
    """

    row: int
    text: DraftText
    drafted: list[int] = field(default_factory=list)


class TranslatedDraftProposer:
    """See :class:`~quire.speculative.proposer.Proposer`.

    Args:
        table: The token table of the target's runner.
        model: The draft, on the target's backend.
        kv_cache: The draft's cache; its blocks are given out here.
        pair: The target's and the draft's vocabulary.
        vocab_size: V.
        max_model_len: Tokens, in the draft's vocabulary, above which a text gets no proposals.
        max_tokens: Tokens that the model's buffers have room for.
    """

    def __init__(
        self,
        table: TokenTable,
        model: Decoder,
        kv_cache: KVCache,
        pair: VocabularyPair,
        *,
        vocab_size: int,
        max_model_len: int,
        max_tokens: int = MOST_TOKENS,
    ) -> None:
        self._table = table
        self._backend = model.backend
        self._pair = pair
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._block_size = kv_cache.spec.block_size
        draft_size = model.config.vocab_size
        max_blocks = -(-max_model_len // self._block_size)
        self._own = TokenTable(len(table.num_tokens), max_blocks)
        self._drafter = DraftModelProposer(
            self._own,
            model,
            kv_cache,
            vocab_size=draft_size,
            max_model_len=max_model_len,
            max_tokens=max_tokens,
        )
        self._free = list(range(kv_cache.num_blocks - 1, 0, -1))
        self._sequences: dict[int, _Sequence] = {}
        exist = (pair.target_ids < vocab_size) & (pair.draft_ids < draft_size)
        self._common = [
            self._backend.from_numpy(ids[exist].astype(np.int64))
            for ids in (pair.target_ids, pair.draft_ids)
        ]
        self._draft_of = np.full(vocab_size, -1, np.int32)
        self._draft_of[pair.target_ids[exist]] = pair.draft_ids[exist]

    def begin(self, row: int, extra_keys: tuple[str, ...]) -> None:
        """Add a row whose text is empty yet."""
        own = self._own.add(str(row), [], 0)
        self._drafter.begin(own, extra_keys)
        self._sequences[row] = _Sequence(own, DraftText(self._pair))

    def forget(self, row: int) -> None:
        """Release a row and its blocks."""
        own = self._sequences.pop(row).row
        self._free += self._own.block_ids[own, : self._own.num_blocks[own]].tolist()
        self._own.remove(str(row))

    def step_took(self, seconds: float) -> None:
        """Compute more or fewer known tokens at once by how long the target's steps take."""
        self._drafter.step_took(seconds)

    def take_work(self) -> ForwardWork:
        """Return what was computed since the last call, estimated."""
        return self._drafter.take_work()

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Do nothing: the draft's blocks are not the target's."""

    def propose(self, rows: IntArray, most: IntArray, draw: DraftDraw) -> IntArray:
        """Write proposals into the table; see the protocol."""
        counts = np.zeros(len(rows), np.int32)
        ready = [
            i
            for i, (row, wanted) in enumerate(zip(rows.tolist(), most.tolist(), strict=True))
            if self._follow(row, wanted)
        ]
        if not ready:
            return counts
        own = np.array([self._sequences[row].row for row in rows[ready].tolist()], np.int32)
        target_rows = dict(zip(own.tolist(), rows[ready].tolist(), strict=True))

        def draw_own(logits: Array, rows: IntArray, lengths: IntArray) -> IntArray:
            at = np.array([target_rows[row] for row in rows.tolist()], np.int32)
            if self._pair.way == "text":
                return self._draw_any(logits, at)
            num_drafted = lengths - self._own.num_tokens[rows]
            return self._draw_common(draw, logits, at, self._table.num_tokens[at] + num_drafted)

        drafted = self._drafter.propose(own, most[ready], draw_own)
        if self._pair.way == "intersection":
            counts[ready] = drafted  # which are in the table
        else:
            counts[ready] = [
                self._write(row, wanted)
                for row, wanted in zip(rows[ready].tolist(), most[ready].tolist(), strict=True)
            ]
        return counts

    def _draw_common(
        self, draw: DraftDraw, logits: Array, rows: IntArray, lengths: IntArray
    ) -> IntArray:
        """Draw as the target does among tokens that both have; return them as the draft's."""
        ours, theirs = self._common
        fitted = self._backend.empty((len(rows), self._vocab_size))
        fitted[...] = -np.inf
        fitted[:, ours] = logits[:, theirs]
        tokens = draw(fitted, rows, lengths)
        possible = tokens >= 0
        self._table.token_ids[rows[possible], lengths[possible]] = tokens[possible]
        found: IntArray = np.where(possible, self._draft_of[tokens], -1)
        return found

    def _draw_any(self, logits: Array, rows: IntArray) -> IntArray:
        """Take the likeliest token of each row; a special one ends what is written.

        What is written must be the target's tokens one by one, which no single draw of the target's
        decides: the likeliest text holds most often.
        """
        tokens: IntArray = self._backend.to_numpy(logits.argmax(1)).astype(np.int32)
        for i, row in enumerate(rows.tolist()):
            token = int(tokens[i])
            self._sequences[row].drafted.append(token)
            if self._pair.draft.is_special(token):
                tokens[i] = -1
        return tokens

    def _write(self, row: int, most: int) -> int:
        """Write what a row's draft comes to into the table; return how many tokens."""
        known = int(self._table.num_tokens[row])
        drafted = self._sequences[row].drafted
        found = self._pair.proposed_tokens(self._table.tokens(row), drafted)[:most]
        found = [token for token in found if token < self._vocab_size]
        self._table.token_ids[row, known : known + len(found)] = found
        return len(found)

    def _follow(self, row: int, most: int) -> bool:
        """Bring a row's text up to date; return whether it can be drafted from."""
        sequence, own = self._sequences[row], self._own
        sequence.drafted.clear()
        first, tokens = sequence.text.follow(self._table.tokens(row))
        ids = np.array(tokens, np.int32)
        at, before = sequence.row, int(own.num_tokens[sequence.row])
        end = first + len(ids)
        own.reserve(np.array([at]), np.array([max(end - before, 0) + most + 1]))
        if not np.array_equal(own.token_ids[at, first:before], ids[: max(before - first, 0)]):
            self._drafter.begin(at, ())
        own.token_ids[at, first:end] = ids
        own.num_tokens[at] = end
        if not sequence.text.is_whole or not 0 < end < self._max_model_len:
            return False
        missing = -(-min(end + most, self._max_model_len) // self._block_size)
        missing -= int(own.num_blocks[at])
        if missing > len(self._free):
            return False
        if missing > 0:
            own.append_blocks(at, [self._free.pop() for _ in range(missing)])
        return True
