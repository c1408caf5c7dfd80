"""A step's arrays out of the token table: runs of positions of some rows, one after another.

B rows of the table, T positions in all.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quire.kernels.batch.forward_batch import ForwardBatch
from quire.kernels.batch.token_table import IntArray, TokenTable


def ragged_batch(
    table: TokenTable, block_size: int, rows: IntArray, starts: IntArray, lengths: IntArray
) -> ForwardBatch:
    """Lay runs of positions out, with a fixed number of numpy calls.

    Args:
        table: Table with tokens and blocks of all the positions; it need not count the tokens.
        block_size: Tokens per KV block.
        rows: (B,) int32, at least one.
        starts: (B,) int32, each row's first position.
        lengths: (B,) int32, positions of each row, at least 1.

    Returns:
        The step, on the host; ``logits_indices`` are the last positions of the rows.
    """
    query_start_loc = np.zeros(len(rows) + 1, np.int32)
    lengths.cumsum(out=query_start_loc[1:])
    num_tokens = int(query_start_loc[-1])
    if num_tokens == len(rows):
        return single_batch(table, block_size, rows, starts)
    token_rows = rows.repeat(lengths)
    positions = (starts - query_start_loc[:-1]).repeat(lengths)
    positions += np.arange(num_tokens, dtype=np.int32)
    return ForwardBatch(
        input_ids=table.token_ids[token_rows, positions],
        positions=positions,
        slot_mapping=_slots(table, block_size, token_rows, positions),
        block_tables=_block_tables(table, block_size, rows, int((starts + lengths).max())),
        query_start_loc=query_start_loc,
        seq_lens=starts + lengths,
        logits_indices=query_start_loc[1:] - 1,
    )


def single_batch(
    table: TokenTable, block_size: int, rows: IntArray, positions: IntArray
) -> ForwardBatch:
    """Lay out one position of each row, as :func:`ragged_batch` does.

    Args:
        table: Table with tokens and blocks of all the positions; it need not count the tokens.
        block_size: Tokens per KV block.
        rows: (B,) int32, at least one.
        positions: (B,) int32.

    Returns:
        The step, on the host; all logits are wanted.
    """
    numbers = np.arange(len(rows) + 1, dtype=np.int32)
    seq_lens = positions + np.int32(1)
    return ForwardBatch(
        input_ids=table.token_ids[rows, positions],
        positions=positions,
        slot_mapping=_slots(table, block_size, rows, positions),
        block_tables=_block_tables(table, block_size, rows, int(seq_lens.max())),
        query_start_loc=numbers,
        seq_lens=seq_lens,
        logits_indices=numbers[:-1],
    )


def rows_without_memory(num_rows: int) -> ForwardBatch:
    """Return a step of sequences of one token, all the same, that writes nothing; on the host."""
    zeros, numbers = np.zeros(num_rows, np.int32), np.arange(num_rows + 1, dtype=np.int32)
    return ForwardBatch(
        input_ids=zeros,
        positions=zeros,
        slot_mapping=np.full(num_rows, -1, np.int64),
        block_tables=np.zeros((num_rows, 1), np.int32),
        query_start_loc=numbers,
        seq_lens=np.ones(num_rows, np.int32),
        logits_indices=numbers[:-1],
    )


def _slots(
    table: TokenTable, block_size: int, rows: IntArray, positions: IntArray
) -> npt.NDArray[np.int64]:
    """Return the slot of each position (T,) of ``rows`` (T,)."""
    numbers = positions // block_size
    slots = table.block_ids[rows, numbers].astype(np.int64)
    slots -= numbers
    slots *= block_size
    slots += positions
    return slots


def _block_tables(table: TokenTable, block_size: int, rows: IntArray, length: int) -> IntArray:
    """Return the blocks of the first ``length`` positions of each row (B,), contiguous."""
    return np.ascontiguousarray(table.block_ids[rows, : -(-length // block_size)])
