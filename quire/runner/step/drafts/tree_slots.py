"""Slots of a tree's accepted tokens: their KV moves to where a plain sequence has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.kernels.backend import KVCache
from quire.kernels.batch.token_table import TokenTable


def keep_accepted_slots(
    paths: Mapping[int, Sequence[int]], table: TokenTable, kv_cache: KVCache
) -> None:
    """Move the KV of a tree's accepted tokens to the slots of a plain sequence.

    Args:
        paths: Indices of the accepted tokens among the proposed ones, in order, by row of the
            table; the tokens are appended already.
        table: The table of the rows' tokens and blocks.
        kv_cache: The cache that the step was computed in.
    """
    size = kv_cache.spec.block_size
    pairs: list[tuple[int, int]] = []
    for row, path in paths.items():
        start = int(table.num_tokens[row]) - 1 - len(path)
        for i, node in enumerate(path):
            if i != node:
                source, target = divmod(start + node, size), divmod(start + i, size)
                blocks = table.block_ids[row]
                from_slot = int(blocks[source[0]]) * size + source[1]
                pairs.append((from_slot, int(blocks[target[0]]) * size + target[1]))
    if pairs:
        kv_cache.copy_slots(pairs)
