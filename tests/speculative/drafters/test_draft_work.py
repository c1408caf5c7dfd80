"""What goes through a drafter, counted row by row."""

from __future__ import annotations

import numpy as np

from quire.core.model.forward_work import ForwardWork, PassShape
from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.batch.ragged_batch import ragged_batch, single_batch
from quire.kernels.batch.token_table import TokenTable
from quire.kernels.batch.tree_batch import BatchTree, add_trees
from quire.speculative.drafters.draft_work import DraftWork

SHAPE = PassShape(
    token_flops=1, pair_flops=10**3, logits_flops=10**7, weight_bytes=10**6, kv_token_bytes=2
)
BLOCK = 4


def table() -> tuple[TokenTable, list[int]]:
    own = TokenTable(4, 10)
    rows = [own.add(name, list(range(count)), count) for name, count in (("a", 9), ("b", 6))]
    for row, blocks in zip(rows, ([1, 2, 3, 4], [5, 6, 7]), strict=True):
        own.append_blocks(row, blocks)
    return own, rows


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def taken(*batches: ForwardBatch) -> ForwardWork:
    work = DraftWork(SHAPE)
    for batch in batches:
        work.add(batch)
    found = work.take()
    assert work.take() == ForwardWork()
    return found


def expected(tokens: int, pairs: int, context: int, logits: int, passes: int = 1) -> ForwardWork:
    flops = tokens + 10**3 * pairs + 10**7 * logits
    return ForwardWork(flops, 10**6 * passes + 2 * context, 2 * tokens)


def test_a_token_of_each_row():
    own, rows = table()
    batch = single_batch(own, BLOCK, ints(*rows), ints(8, 5))
    assert taken(batch) == expected(2, 9 + 6, 9 + 6, 2)
    assert taken(batch, batch) == expected(4, 30, 30, 4, passes=2)


def test_known_tokens_of_rows():
    own, rows = table()
    batch = ragged_batch(own, BLOCK, ints(*rows), ints(6, 5), ints(3, 1))
    assert taken(batch) == expected(4, 7 + 8 + 9 + 6, 9 + 6, 2)


def test_rows_of_trees_see_their_paths():
    own, rows = table()
    batch = ragged_batch(own, BLOCK, ints(*rows), ints(9, 6), ints(3, 1))
    add_trees(batch, BLOCK, [BatchTree(0, 9, [[0], [1], [0, 2]]), BatchTree(1, 6, [[0]])])
    batch.logits_indices = np.arange(4, dtype=np.int32)
    assert taken(batch) == expected(4, (10 + 10 + 11) + 7, 12 + 7, 4)


def test_a_chain_is_as_many_steps():
    own, rows = table()
    steps = [single_batch(own, BLOCK, ints(*rows), ints(4 + i, 2 + i)) for i in range(3)]
    work = DraftWork(SHAPE)
    work.add_chain(steps[0].seq_lens, 3)
    assert work.take() == taken(*steps)
