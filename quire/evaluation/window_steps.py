"""Windows as steps of a decoder: which tokens are computed together, and where their KV lies.

A window that fits a step is computed whole, next to others; a longer one alone, in several steps.
T tokens of a step, B windows in it, L rows whose next token counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from quire.evaluation.windows import Window
from quire.kernels.batch.forward_batch import ForwardBatch


@dataclass(frozen=True, slots=True, eq=False)
class WindowPiece:
    """Tokens of a window that a step computes.

    Attributes:
        index: Index of the window.
        window: The window.
        begin, end: Range of the window's tokens.
    """

    index: int
    window: Window
    begin: int
    end: int

    @property
    def rows(self) -> range:
        """Positions whose next token counts."""
        last = len(self.window.token_ids) - 1
        return range(max(self.begin, self.window.first - 1), min(self.end, last))


def plan_steps(
    windows: Sequence[Window], step_tokens: int, block_size: int
) -> Iterator[list[WindowPiece]]:
    """Yield the pieces of each step: at most ``step_tokens`` tokens, and blocks for as many."""
    step: list[WindowPiece] = []
    most = room = step_tokens // block_size
    for index, window in enumerate(windows):
        length = len(window.token_ids)
        blocks = -(-length // block_size)
        if blocks > room and step:
            yield step
            step, room = [], most
        if blocks > room:
            for begin in range(0, length, step_tokens):
                yield [WindowPiece(index, window, begin, min(begin + step_tokens, length))]
            continue
        step.append(WindowPiece(index, window, 0, length))
        room -= blocks
    if step:
        yield step


def most_blocks(longest: int, step_tokens: int, block_size: int) -> int:
    """Return the most blocks of KV that a step of windows needs, the null block included.

    Args:
        longest: Tokens of the longest window.
        step_tokens, block_size: The same as in :func:`plan_steps`.
    """
    return 1 + max(-(-longest // block_size), step_tokens // block_size)


def create_batch(step: Sequence[WindowPiece], block_size: int) -> ForwardBatch:
    """Return a step's arrays; its windows have blocks in their order, from block 1 on.

    A window of several steps is alone in each, so its blocks are the same in all.
    """
    lengths = np.array([piece.end - piece.begin for piece in step], np.int32)
    blocks = np.array([-(-piece.end // block_size) for piece in step])
    first_blocks = 1 + np.cumsum(blocks) - blocks
    tables = np.zeros((len(step), int(blocks.max())), np.int32)
    for row, (first, count) in enumerate(zip(first_blocks, blocks, strict=True)):
        tables[row, :count] = np.arange(first, first + count)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    positions = np.concatenate([np.arange(piece.begin, piece.end) for piece in step])
    wanted = [
        np.arange(piece.rows.start, piece.rows.stop) - piece.begin + start
        for piece, start in zip(step, starts, strict=True)
    ]
    return ForwardBatch(
        input_ids=np.concatenate([p.window.token_ids[p.begin : p.end] for p in step]),
        positions=positions.astype(np.int32),
        slot_mapping=np.repeat(first_blocks * block_size, lengths) + positions,
        block_tables=tables,
        query_start_loc=np.concatenate([[0], ends]).astype(np.int32),
        seq_lens=np.array([piece.end for piece in step], np.int32),
        logits_indices=np.concatenate(wanted).astype(np.int32),
    )


def targets(step: Sequence[WindowPiece]) -> np.ndarray:
    """Return the next token of each of the L rows, in the batch's order."""
    found = [p.window.token_ids[p.rows.start + 1 : p.rows.stop + 1] for p in step]
    return np.concatenate(found)
