"""Trees of tokens in a step: several tokens for one position, each with a path of its own.

The tokens of a tree follow a request's known ones, each in a slot of its own; a row sees the known
tokens, then those on its path. T tokens of the step, B requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quire.kernels.batch.forward_batch import ForwardBatch


@dataclass(frozen=True, slots=True)
class BatchTree:
    """The last rows of one request of a step.

    Attributes:
        request: Index of the request in the step.
        start: The first position with a choice of tokens, as the step's lengths count.
        paths: Tokens that each of the last rows sees from there on, its own the last: the number of
            slots that each lies after that of ``start``.
    """

    request: int
    start: int
    paths: Sequence[Sequence[int]]


def add_trees(step: ForwardBatch, block_size: int, trees: Sequence[BatchTree]) -> None:
    """Make the last rows of some requests trees; their positions become those of their depths.

    Args:
        step: The step on the host, laid out as if the tokens of each request were a chain.
        block_size: Tokens per KV block.
        trees: Trees of requests, at least one.
    """
    depth = max(len(path) for tree in trees for path in tree.paths)
    starts = step.seq_lens.astype(np.int32)
    slots = np.full((len(step.input_ids), depth), -1, np.int64)
    step.positions = step.positions.copy()
    for tree in trees:
        first = int(step.query_start_loc[tree.request + 1]) - len(tree.paths)
        longest = max(max(path) for path in tree.paths) + 1
        at = np.arange(tree.start, tree.start + longest)
        blocks = step.block_tables[tree.request, at // block_size].astype(np.int64)
        own = blocks * block_size + at % block_size
        # Positions may count from before the step's lengths, which may leave tokens out.
        position = step.positions[first] - (int(step.seq_lens[tree.request]) - len(tree.paths))
        for row, path in enumerate(tree.paths, start=first):
            slots[row, : len(path)] = own[list(path)]
            step.positions[row] = position + tree.start + len(path) - 1
        starts[tree.request] = tree.start
    step.tree_starts, step.tree_slots = starts, slots


def num_masked_pairs(parents: Sequence[int]) -> int:
    """Return how many pairs of a tree's tokens a chain of as many has and the tree has not."""
    num_tokens = len(parents)
    return num_tokens * (num_tokens + 1) // 2 - sum(map(len, tree_paths(parents)))


def tree_paths(parents: Sequence[int]) -> list[list[int]]:
    """Return the path of each token of a tree: its ancestors from the top on, then itself.

    Args:
        parents: Each token's parent, an earlier one; -1 for those at the top.
    """
    paths: list[list[int]] = []
    for token, parent in enumerate(parents):
        paths.append([*paths[parent], token] if parent >= 0 else [token])
    return paths
