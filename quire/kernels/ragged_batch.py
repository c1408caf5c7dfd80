"""A step's arrays out of the token table: runs of positions of some rows, one after another.

B rows of the table, T positions in all.
"""

from __future__ import annotations

import numpy as np

from quire.kernels.forward_batch import ForwardBatch
from quire.kernels.token_table import IntArray, TokenTable


def ragged_batch(
    table: TokenTable, block_size: int, rows: IntArray, starts: IntArray, lengths: IntArray
) -> ForwardBatch:
    """Lay runs of positions out, with a fixed number of numpy calls.

    Args:
        table: Holds tokens and blocks of all the positions; it need not count the tokens.
        block_size: Tokens per KV block.
        rows: (B,) int32, at least one.
        starts: (B,) int32, each row's first position.
        lengths: (B,) int32, positions of each row, at least 1.

    Returns:
        The step, on the host; ``logits_indices`` are the last positions of the rows.
    """
    query_start_loc = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(lengths, out=query_start_loc[1:])
    num_tokens = int(query_start_loc[-1])
    if num_tokens == len(rows):
        token_rows, positions = rows, starts
    else:
        token_rows = np.repeat(rows, lengths)
        positions = np.repeat(starts - query_start_loc[:-1], lengths)
        positions += np.arange(num_tokens, dtype=np.int32)
    seq_lens = starts + lengths
    width = -(-int(seq_lens.max()) // block_size)
    blocks = table.block_ids[token_rows, positions // block_size]
    slots = blocks.astype(np.int64) * block_size + positions % block_size
    return ForwardBatch(
        input_ids=table.token_ids[token_rows, positions],
        positions=positions,
        slot_mapping=slots,
        block_tables=np.ascontiguousarray(table.block_ids[rows, :width]),
        query_start_loc=query_start_loc,
        seq_lens=seq_lens,
        logits_indices=query_start_loc[1:] - 1,
    )
