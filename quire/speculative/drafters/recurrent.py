"""Tokens proposed by heads that draft one after the other: EAGLE, EAGLE-3 and MTP modules.

The KV of the pair at position p depends on tokens up to p, and lies in slot p of a cache. The cache
has a block for each block id of the target and is read through the target's block tables. Pairs are
computed when proposals are asked for; until then the states wait. Where states were never told (a
prefix that was found in the cache, states that had to make room), a head attends only to the
positions after those. B rows of the token table.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from quire.core.model.forward_work import ForwardWork, PassShape
from quire.kernels.backend import Array, ChainStart, KVCache
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.batch.ragged_batch import ragged_batch, single_batch
from quire.kernels.batch.token_table import IntArray, TokenTable
from quire.kernels.batch.tree_batch import add_trees
from quire.models.draft_heads.recurrent import RecurrentHead
from quire.speculative.drafters.draft_prefill import MOST_PAIRS, DraftPrefill
from quire.speculative.drafters.draft_work import DraftWork
from quire.speculative.drafters.drafted_rows import DraftedRows
from quire.speculative.drafters.hidden_state_buffer import HiddenStateBuffer, Places
from quire.speculative.drafters.prefix_keys import SlotKeys
from quire.speculative.drafters.target_states import ComputedStates, WantedStates
from quire.speculative.drafters.tree_drafting import TreeDrafting
from quire.speculative.proposer import ChainDraw, Rank
from quire.speculative.token_tree import TreeShape

#: Positions whose states wait, over all rows.
MAX_KEPT = 2048


@dataclass(slots=True)
class _Row:
    """A row's pairs in the cache.

    Attributes:
        end: Position before which its pairs are in the cache, or will never be.
        start: First position of the block from which the head attends; None: not looked up.
    """

    end: int
    start: int | None = None


@dataclass(frozen=True, slots=True)
class WaitingPairs:
    """The pairs of known tokens that are computed next.

    Attributes:
        rows: (B,) rows of the table.
        live: (B,) whether these are all pairs of a row that wait.
        starts: (B,) position from which each row attends.
        begins, lengths: (B,) first pair of each row, and number of its pairs.
        places: Places of the states of each row's pairs.
    """

    rows: IntArray
    live: npt.NDArray[np.bool_]
    starts: IntArray
    begins: IntArray
    lengths: IntArray
    places: list[Places]


@dataclass(frozen=True, slots=True)
class _KnownPairs:
    """A head's outputs for the known tokens of rows.

    Attributes:
        live: (B,) whether all pairs of a row are computed; L rows' are.
        starts: (L,) position from which each of these rows attends.
        outputs, logits: (L, D) and (L, V) after their last tokens.
    """

    live: npt.NDArray[np.bool_]
    starts: IntArray
    outputs: Array
    logits: Array


class RecurrentProposer:
    """See :class:`~quire.speculative.drafters.target_states.StateReader`.

    Args:
        table: The token table of the target's runner.
        head: The draft head, on the target's backend.
        kv_cache: The head's cache, with as many blocks of the same size as the target's.
        max_model_len: Tokens of a row above which it gets no proposals.
        max_tokens: Tokens that the head's buffers have room for.
        shape: Operations and bytes of a pass, for estimates; None counts nothing.
    """

    def __init__(
        self,
        table: TokenTable,
        head: RecurrentHead,
        kv_cache: KVCache,
        max_model_len: int,
        max_tokens: int = MOST_PAIRS,
        shape: PassShape | None = None,
    ) -> None:
        self._table = table
        self._head = head
        self._kv_cache = kv_cache
        self._max_model_len = max_model_len
        self._block_size = kv_cache.spec.block_size
        self._keys = SlotKeys(table, kv_cache.num_blocks, self._block_size)
        self._log = HiddenStateBuffer(head.backend, head.state_size, MAX_KEPT)
        self._rows: dict[int, _Row] = {}
        self._prefill = DraftPrefill(max_tokens)
        self._work = DraftWork(shape or PassShape())

    @property
    def wanted_states(self) -> WantedStates:
        """States of every position, at the head's layers."""
        return WantedStates(of_every_position=True, layers=self._head.layers)

    def begin(self, row: int, extra_keys: tuple[str, ...]) -> None:
        """Add a row without known states."""
        self.forget(row)
        self._log.begin(row)

    def forget(self, row: int) -> None:
        """Release a row; its KV may be found again by its tokens."""
        self._keys.store(row)
        self._rows.pop(row, None)

    def fork(self, parent: int, child: int) -> None:
        """Copy what is known of a row to another one."""
        self._log.fork(parent, child)
        if parent in self._rows:
            self._rows[child] = replace(self._rows[parent])

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the head's blocks as the target's were."""
        self._kv_cache.copy_blocks(pairs)
        self._keys.copy_blocks(pairs)

    def step_took(self, seconds: float) -> None:
        """Compute more or fewer pairs at once by how long the target's steps take."""
        self._prefill.step_took(seconds)

    def take_work(self) -> ForwardWork:
        """Return what was computed since the last call, estimated."""
        return self._work.take()

    def observe(self, computed: ComputedStates) -> None:
        """Keep the states until proposals are asked for."""
        self._log.append(computed)

    def propose(self, rows: IntArray, most: IntArray, draw: ChainDraw) -> IntArray:
        """Write proposals into the table; see the protocol."""
        counts = np.zeros(len(rows), np.int32)
        most = np.minimum(most, self._max_model_len - self._table.num_tokens[rows])
        ready, places = self._ready(rows, most)
        if len(ready):
            counts[ready] = self._draft(rows[ready], places, most[ready], draw)
        return counts

    def propose_trees(
        self, rows: IntArray, most: IntArray, shape: TreeShape, rank: Rank
    ) -> list[list[int]]:
        """Write trees into the table; see the protocol."""
        parents: list[list[int]] = [[] for _ in rows]
        most = np.minimum(most, self._max_model_len - self._table.num_tokens[rows])
        ready, places = self._ready(rows, most)
        if not len(ready):
            return parents
        pairs = self._compute_known(rows[ready], places)
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

    def _ready(self, rows: IntArray, most: IntArray) -> tuple[npt.NDArray[np.int64], list[Places]]:
        """Return which of ``rows`` (B,) can be drafted for, and each one's pairs that wait."""
        known = self._table.num_tokens[rows].tolist()
        waiting = [
            self._waiting(row, known[i]) if most[i] > 0 else None
            for i, row in enumerate(rows.tolist())
        ]
        ready = [i for i, places in enumerate(waiting) if places is not None]
        return np.array(ready, np.int64), [places for places in waiting if places is not None]

    def _compute_known(self, rows: IntArray, places: Sequence[Places]) -> _KnownPairs:
        """Compute the pairs of known tokens that wait, many in several steps."""
        pairs = self._take(rows, places)
        starts, live, part = pairs.starts, pairs.live, pairs.lengths > 0
        batch = self._batch(rows[part], starts[part], pairs.begins[part], pairs.lengths[part])
        batch.logits_indices = batch.logits_indices[live[part]]
        outputs, logits = self._compute_pairs(batch, pairs, pairs.places)
        return _KnownPairs(live, starts[live], outputs, logits)

    def _take(self, rows: IntArray, places: Sequence[Places]) -> WaitingPairs:
        """Share a step's pairs out among rows and the pairs of each that wait."""
        known = self._table.num_tokens[rows]
        infos = [self._rows[row] for row in rows.tolist()]
        starts = np.array([info.start for info in infos], np.int32)
        begins = np.array([info.end for info in infos], np.int32)
        lengths = self._prefill.share(known - begins)
        taken = [own[:length] for own, length in zip(places, lengths.tolist(), strict=True)]
        return WaitingPairs(rows, begins + lengths == known, starts, begins, lengths, taken)

    def _compute_pairs(
        self, batch: ForwardBatch, pairs: WaitingPairs, places: Sequence[Places]
    ) -> tuple[Array, Array]:
        """Compute a batch with pairs that waited, whose states lie in places; note them."""
        begin = time.perf_counter()
        at = places[0] if len(places) == 1 else np.concatenate(places)
        outputs, logits = self._forward(batch, self._head.features(self._log.read(at)))
        self._prefill.computed(len(batch.input_ids), time.perf_counter() - begin)
        ends = (pairs.begins + pairs.lengths).tolist()
        for row, end in zip(pairs.rows.tolist(), ends, strict=True):
            info = self._rows[row]
            self._keys.fill(row, info.end, end)
            info.end = end
        return outputs, logits

    def _draft(
        self, rows: IntArray, places: Sequence[Places], most: IntArray, draw: ChainDraw
    ) -> IntArray:
        pairs = self._compute_known(rows, places)
        live, starts, outputs, logits = pairs.live, pairs.starts, pairs.outputs, pairs.logits
        counts = np.zeros(len(rows), np.int32)
        drafted = DraftedRows(self._table, rows[live], most[live])
        if not len(drafted.rows):
            return counts
        tokens = draw(logits, drafted.rows, drafted.lengths)
        while True:
            went_on = drafted.append(tokens)
            if not len(drafted.rows):
                break
            if went_on is not None:
                starts, tokens = starts[went_on], tokens[went_on]
                outputs = self._pick(outputs, went_on)
            outputs, tokens = self._draw_next(drafted, starts, (outputs, tokens), draw)
        counts[live] = drafted.counts
        return counts

    def _draw_next(
        self,
        drafted: DraftedRows,
        starts: IntArray,
        last: tuple[Array, IntArray],
        draw: ChainDraw,
    ) -> tuple[Array, IntArray]:
        """Draft with one call; append all its tokens but the last ones, which are returned.

        Args:
            drafted: L rows that are still drafted for.
            starts: (L,) position from which each attends.
            last: Outputs (L, D), and tokens (L,) drawn from them, which were appended.
            draw: The target's draw.

        Returns:
            The last outputs (L, D), and tokens (L,) drawn from them, which are not appended.
        """
        rows, lengths, (outputs, tokens) = drafted.rows, drafted.lengths, last
        if not self._head.has_chain(len(rows)):
            outputs = self._pick(outputs, np.arange(len(rows), dtype=np.int32))
        chain = self._head.chain(len(rows), self._table.block_ids.shape[1], self._kv_cache)
        sampling = None if chain is None else draw.plain(rows, lengths)
        if chain is None or sampling is None:
            batch = self._batch(rows, starts, lengths - 1, None)
            outputs, logits = self._forward(batch, outputs)
            return outputs, draw(logits, rows, lengths)
        steps, seq_lens = drafted.least_left, lengths - starts
        blocks = self._blocks(rows, starts, int(seq_lens.max()) + steps - 1)
        start = ChainStart(tokens, lengths - 1, seq_lens, blocks, outputs)
        drawn = chain.run(start, sampling, steps)
        self._work.add_chain(seq_lens, len(drawn))
        for more in drawn[:-1]:
            drafted.append(more)
        return chain.outputs, drawn[-1]

    def _pick(self, outputs: Array, at: IntArray) -> Array:
        """Copy some rows of a head's outputs (L, D)."""
        backend = self._head.backend
        picked = backend.empty((len(at), outputs.shape[1]), backend.activation_dtype)
        return backend.gather_rows(outputs, backend.from_numpy(at), picked)

    def _forward(self, batch: ForwardBatch, features: Array) -> tuple[Array, Array]:
        head = self._head
        self._work.add(batch)
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
            batch.block_tables = self._blocks(rows, firsts, int(batch.seq_lens.max()))
        return batch

    def _blocks(self, rows: IntArray, firsts: IntArray, length: int) -> IntArray:
        """Return the blocks of ``length`` positions of each row from its first one on."""
        width = -(-length // self._block_size)
        columns = (firsts // self._block_size)[:, None] + np.arange(width)
        columns = np.minimum(columns, self._table.block_ids.shape[1] - 1)
        return np.ascontiguousarray(self._table.block_ids[rows[:, None], columns])

    def _waiting(self, row: int, num_tokens: int) -> Places | None:
        """Return the places of the states of a row's pairs that wait.

        States are those of all tokens but the last, which was drawn from the last of them.

        Returns:
            A place for each pair from the row's ``end`` on; None where states of some of the
            ``num_tokens`` are missing, or the row would have nothing to attend to.
        """
        info = self._rows.get(row)
        needed = 0 if info is None else info.end - 1
        start, places = self._log.find(row, max(needed, 0))
        if not len(places) or start + len(places) != num_tokens - 1:
            return None
        if info is None or start > max(needed, 0):
            first = start
            if self._log.has_lost(row):
                # The first pair that can be computed is the first of a block.
                first = -(-(start + 1) // self._block_size) * self._block_size
            if first >= num_tokens:
                return None
            self._keys.store(row)
            info = self._rows[row] = _Row(first)
        if info.start is None:
            found = self._keys.first_valid(row, info.end)
            info.start = -(-found // self._block_size) * self._block_size
        self._leave_window(row, info, num_tokens)
        if info.start >= num_tokens:
            info.start = None
            return None
        # The first pair needs the state before: zeros, as at position 0, where there is none.
        if start == info.end:
            return np.concatenate([[self._log.place_of_zeros], places])
        return places[info.end - 1 - start :]

    def _leave_window(self, row: int, info: _Row, num_tokens: int) -> None:
        """Skip blocks that the target gave back since its window has left them."""
        assert info.start is not None, "not looked up"
        blocks = self._table.block_ids[row]
        while info.start < num_tokens and blocks[info.start // self._block_size] == 0:
            info.start += self._block_size
        info.end = max(info.end, info.start)  # nothing will attend to pairs before
