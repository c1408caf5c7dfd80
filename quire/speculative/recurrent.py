"""Tokens proposed by heads that draft one after the other: EAGLE, EAGLE-3 and MTP modules.

The KV of the pair at position p depends on tokens up to p, and lies in slot p of a cache that has a
block for each block id of the target, read through the target's block tables. Pairs are computed
when proposals are asked for; until then the states wait. Where states were never told (a prefix
that was found in the cache, states that had to make room), a head attends to the positions after
that only. B rows of the token table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.kernels.backend import Array, KVCache
from quire.kernels.forward_batch import ForwardBatch
from quire.kernels.ragged_batch import ragged_batch, single_batch
from quire.kernels.token_table import IntArray, TokenTable
from quire.kernels.tree_batch import add_trees
from quire.models.draft_heads.recurrent import RecurrentHead
from quire.speculative.draft_model import MAX_TOKENS, share
from quire.speculative.drafted_rows import DraftedRows
from quire.speculative.kept_states import KeptStates
from quire.speculative.proposer import Draw, Rank
from quire.speculative.slot_keys import SlotKeys
from quire.speculative.target_states import ComputedStates, WantedStates
from quire.speculative.token_tree import TreeShape
from quire.speculative.tree_drafting import TreeDrafting

#: Positions whose states wait, over all rows.
MAX_KEPT = 2048


@dataclass(slots=True)
class _Row:
    """What is known of a row.

    Attributes:
        end: Its pairs before this position are in the cache, or will never be.
        start: The head attends from here on, the first position of a block; None: not looked up.
    """

    end: int
    start: int | None = None


@dataclass(frozen=True, slots=True)
class _KnownPairs:
    """What a head makes of the known tokens of rows.

    Attributes:
        live: (B,) of which rows all are computed.
        starts: (L,) from where these attend.
        outputs, logits: (L, D) and (L, V) after their last tokens.
    """

    live: npt.NDArray[np.bool_]
    starts: IntArray
    outputs: Array
    logits: Array


class RecurrentProposer:
    """See :class:`~quire.speculative.target_states.StateReader`.

    Args:
        table: Of the target's runner.
        head: On the target's backend.
        kv_cache: Of the head, with as many blocks of the same size as the target's.
        max_model_len: Rows of more tokens get no proposals.
    """

    def __init__(
        self, table: TokenTable, head: RecurrentHead, kv_cache: KVCache, max_model_len: int
    ) -> None:
        self._table = table
        self._head = head
        self._kv_cache = kv_cache
        self._max_model_len = max_model_len
        self._block_size = kv_cache.spec.block_size
        self._keys = SlotKeys(table, kv_cache.num_blocks, self._block_size)
        self._kept = KeptStates(head.backend, head.state_size, MAX_KEPT)
        self._rows: dict[int, _Row] = {}

    @property
    def wanted_states(self) -> WantedStates:
        """Those of every position, of the head's layers."""
        return WantedStates(of_every_position=True, layers=self._head.layers)

    def begin(self, row: int, extra_keys: tuple[str, ...]) -> None:
        """Have a row of which nothing is known yet."""
        self.forget(row)

    def forget(self, row: int) -> None:
        """Let go of a row's states; its KV may be found again by its tokens."""
        self._keys.store(row)
        self._rows.pop(row, None)
        self._kept.forget(row)

    def fork(self, parent: int, child: int) -> None:
        """Copy what is known of a row."""
        known, places = self._rows.get(parent), self._kept.places.get(parent, [])
        if known is None or len(places) > self._kept.num_free:
            return  # the child begins with its own next states
        self._rows[child] = _Row(known.end, known.start)
        filled = [place for place in places if place]
        for _ in range(len(places) - len(filled)):  # at most the first
            self._kept.append_zeros(child)
        if filled:
            states = self._kept.read(filled)
            own = self._kept.append(child, len(filled))
            self._kept.write(states, list(range(len(filled))), own)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the head's blocks as the target's were."""
        self._kv_cache.copy_blocks(pairs)
        self._keys.copy_blocks(pairs)

    def observe(self, computed: ComputedStates) -> None:
        """Keep the states until proposals are asked for."""
        if int(computed.counts.sum()) > self._kept.num_free:
            self._make_room(self._rows.keys() | set(computed.rows.tolist()))
        if self._goes_on(computed):
            places = self._kept.append_each(computed.rows.tolist())
            self._kept.write(computed.states, range(len(places)), places)
            return
        indices: list[int] = []
        places = []
        first = 0
        columns = (computed.rows.tolist(), computed.starts.tolist(), computed.counts.tolist())
        for row, start, count in zip(*columns, strict=True):
            skipped = self._next_state(row) - start
            if skipped < 0 or count - skipped > self._kept.num_free:
                skipped = self._begin_at(row, start, start + count)
            if skipped < count:
                indices += range(first + skipped, first + count)
                places += self._kept.append(row, count - skipped)
            first += count
        if indices:
            self._kept.write(computed.states, indices, places)

    def _goes_on(self, computed: ComputedStates) -> bool:
        """Return whether each row brings the one state that comes next, for which there is room."""
        rows, kept = self._rows, self._kept
        if len(computed.states) > min(len(computed.rows), kept.num_free):
            return False
        for row, start in zip(computed.rows.tolist(), computed.starts.tolist(), strict=True):
            places = kept.places.get(row)
            if not places or rows[row].end + len(places) != start + 1:
                return False
        return True

    def propose(self, rows: IntArray, most: IntArray, draw: Draw) -> IntArray:
        """Write proposals into the table; see the protocol."""
        counts = np.zeros(len(rows), np.int32)
        most = np.minimum(most, self._max_model_len - self._table.num_tokens[rows])
        ready = self._ready(rows, most)
        if ready:
            counts[ready] = self._draft(rows[ready], most[ready], draw)
        return counts

    def propose_trees(
        self, rows: IntArray, most: IntArray, shape: TreeShape, rank: Rank
    ) -> list[list[int]]:
        """Write trees into the table; see the protocol."""
        parents: list[list[int]] = [[] for _ in rows]
        most = np.minimum(most, self._max_model_len - self._table.num_tokens[rows])
        ready = np.array(self._ready(rows, most), np.int64)
        if not len(ready):
            return parents
        pairs = self._compute_known(rows[ready])
        live = ready[pairs.live]
        if not len(live):
            return parents
        own, outputs, logits = rows[live], pairs.outputs, pairs.logits
        drafting = TreeDrafting(self._table, own, most[live], shape, rank)
        while drafting.add(logits):
            level = drafting.next_level()
            at, firsts = own[level.indices], pairs.starts[level.indices]
            batch = self._batch(at, firsts, level.starts, level.counts)
            trees = level.trees(self._table.num_tokens[at] - firsts)
            add_trees(batch, self._block_size, trees)
            batch.logits_indices = np.arange(len(level.paths), dtype=np.int32)
            outputs, logits = self._forward(batch, self._pick(outputs, level.parents))
        for i, found in zip(live.tolist(), drafting.finish(), strict=True):
            parents[i] = found
        return parents

    def _ready(self, rows: IntArray, most: IntArray) -> list[int]:
        """Return which of ``rows`` (B,) can be drafted for."""
        known = self._table.num_tokens[rows]
        # States are those of all tokens but the last, which was drawn from the last of them.
        return [
            i
            for i, row in enumerate(rows.tolist())
            if most[i] > 0
            and self._kept.places.get(row)
            and self._next_state(row) == known[i] - 1
            and self._find_start(row, int(known[i]))
        ]

    def _compute_known(self, rows: IntArray) -> _KnownPairs:
        """Compute the pairs of known tokens that wait; most at once are :data:`MAX_TOKENS`."""
        head, kept = self._head, self._kept
        known = self._table.num_tokens[rows]
        infos = [self._rows[row] for row in rows.tolist()]
        starts = np.array([info.start for info in infos], np.int32)
        begins = np.array([info.end for info in infos], np.int32)
        lengths = share(known - begins, MAX_TOKENS)
        ends = begins + lengths
        places = [
            place
            for row, length in zip(rows.tolist(), lengths.tolist(), strict=True)
            for place in kept.places[row][:length]
        ]
        part = lengths > 0
        batch = self._batch(rows[part], starts[part], begins[part], lengths[part])
        live = ends == known
        batch.logits_indices = batch.logits_indices[live[part]]
        outputs, logits = self._forward(batch, head.features(kept.read(places)))
        for row, info, end in zip(rows.tolist(), infos, ends.tolist(), strict=True):
            self._keys.fill(row, info.end, end)
            kept.drop(row, end - info.end)
            info.end = end
        return _KnownPairs(live, starts[live], outputs, logits)

    def _draft(self, rows: IntArray, most: IntArray, draw: Draw) -> IntArray:
        pairs = self._compute_known(rows)
        live, starts, outputs, logits = pairs.live, pairs.starts, pairs.outputs, pairs.logits
        counts = np.zeros(len(rows), np.int32)
        drafted = DraftedRows(self._table, rows[live], most[live])
        while len(drafted.rows):
            went_on = drafted.append(draw(logits, drafted.rows, drafted.lengths))
            if not len(drafted.rows):
                break
            if went_on is not None:
                starts, outputs = starts[went_on], self._pick(outputs, went_on)
            batch = self._batch(drafted.rows, starts, drafted.lengths - 1, None)
            outputs, logits = self._forward(batch, outputs)
        counts[live] = drafted.counts
        return counts

    def _pick(self, outputs: Array, at: IntArray) -> Array:
        """Copy some rows of a head's outputs (L, D)."""
        backend = self._head.backend
        picked = backend.empty((len(at), outputs.shape[1]), backend.activation_dtype)
        return backend.gather_rows(outputs, backend.from_numpy(at), picked)

    def _forward(self, batch: ForwardBatch, features: Array) -> tuple[Array, Array]:
        head = self._head
        return head.forward(head.backend.upload(batch), features, self._kv_cache)

    def _batch(
        self, rows: IntArray, firsts: IntArray, starts: IntArray, lengths: IntArray | None
    ) -> ForwardBatch:
        """Lay out pairs that see positions from ``firsts`` on: blocks before are left out.

        Without ``lengths`` it is a pair of each row.
        """
        if lengths is None:
            batch = single_batch(self._table, self._block_size, rows, starts)
        else:
            batch = ragged_batch(self._table, self._block_size, rows, starts, lengths)
        if firsts.any():
            batch.seq_lens = batch.seq_lens - firsts
            width = -(-int(batch.seq_lens.max()) // self._block_size)
            columns = (firsts // self._block_size)[:, None] + np.arange(width)
            columns = np.minimum(columns, self._table.block_ids.shape[1] - 1)
            batch.block_tables = np.ascontiguousarray(self._table.block_ids[rows[:, None], columns])
        return batch

    def _next_state(self, row: int) -> int:
        """Return the position whose state is to come."""
        known = self._rows.get(row)
        return -1 if known is None else known.end - 1 + len(self._kept.places.get(row, ()))

    def _find_start(self, row: int, num_tokens: int) -> bool:
        """See to it that a row knows where it begins to attend; whether that is before its end."""
        info, block_size = self._rows[row], self._block_size
        if info.start is None:
            start = self._keys.first_valid(row, info.end)
            info.start = -(-start // block_size) * block_size
        # The target may have given blocks back that its window has left.
        blocks = self._table.block_ids[row]
        while info.start < num_tokens and blocks[info.start // block_size] == 0:
            info.start += block_size
        if info.start >= num_tokens:
            info.start = None
            return False
        if info.start > info.end:  # pairs that nothing will attend to
            self._kept.drop(row, info.start - info.end)
            info.end = info.start
        return True

    def _begin_at(self, row: int, start: int, stop: int) -> int:
        """Begin anew with states from ``start`` to ``stop``; return how many find no room."""
        self.forget(row)
        skipped = self._num_cut(start, stop, self._kept.num_free)
        if skipped:
            self._rows[row] = _Row(start + skipped + 1)
        else:
            # The pair at ``start`` needs the state before: zeros, as at position 0.
            self._rows[row] = _Row(start)
            self._kept.append_zeros(row)
        return skipped

    def _num_cut(self, start: int, stop: int, most: int) -> int:
        """Return how many states from ``start`` to ``stop`` are left out for ``most`` to be kept.

        The first pair that can be computed is then the first of a block.
        """
        if stop - start <= most:
            return 0
        first_pair = -(-(stop - most + 1) // self._block_size) * self._block_size
        return min(first_pair - 1, stop) - start

    def _make_room(self, rows: set[int]) -> None:
        """Let go of the oldest states of all, so that each of the rows can keep as many."""
        most = MAX_KEPT // len(rows) // 2
        for row, info in self._rows.items():
            count = len(self._kept.places.get(row, ()))
            dropped = self._num_cut(info.end - 1, info.end - 1 + count, most)
            if dropped:
                self._kept.drop(row, dropped)
                info.end += dropped
                info.start = None
