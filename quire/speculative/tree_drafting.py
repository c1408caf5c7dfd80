"""Trees that a drafter grows level by level, of several rows at once.

A drafter with a cache of its own computes the nodes that it is asked about in slots after those of
the known tokens, in the order in which it is asked. B rows of the token table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quire.kernels.backend import Array
from quire.kernels.token_table import IntArray, TokenTable
from quire.kernels.tree_batch import BatchTree
from quire.speculative.proposer import Rank
from quire.speculative.token_tree import ROOT, TokenTree, TreeShape


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes that are asked next what follows them, row after row.

    Attributes:
        indices: (R,) of the rows that have some, among the B.
        starts: (R,) position whose slot takes the first of them.
        counts: (R,) how many each row has.
        paths: Of each node, how many slots after the row's known tokens its ancestors lie, and it.
        parents: Of each node, the place of its parent in the level before; 0 below the root.
    """

    indices: IntArray
    starts: IntArray
    counts: IntArray
    paths: list[list[int]]
    parents: IntArray

    def trees(self, firsts: IntArray) -> list[BatchTree]:
        """Return the trees of a batch of these nodes; ``firsts`` (R,) is where each begins."""
        ends = np.cumsum(self.counts).tolist()
        return [
            BatchTree(i, first, self.paths[end - count : end])
            for i, (first, count, end) in enumerate(
                zip(firsts.tolist(), self.counts.tolist(), ends, strict=True)
            )
        ]


class TreeDrafting:
    """The trees of a step.

    Args:
        table: Of the target's runner.
        rows: (B,) of the table.
        most: (B,) tokens that each may get.
        shape: Of each tree.
        rank: Of the target.
    """

    def __init__(
        self, table: TokenTable, rows: IntArray, most: IntArray, shape: TreeShape, rank: Rank
    ) -> None:
        self._table = table
        self._rows = rows
        self._known = table.num_tokens[rows]
        self._shape = shape
        self._rank = rank
        self._trees = [TokenTree(shape, count) for count in most.tolist()]
        self._asked = [(i, ROOT) for i in range(len(rows))]
        self._offsets: list[dict[int, list[int]]] = [{ROOT: []} for _ in self._trees]
        self._before: dict[tuple[int, int], int] = {}
        self._level = 0

    def add(self, logits: Array) -> bool:
        """Add what may follow the nodes that were asked about.

        Args:
            logits: (nodes, V), in the order of :meth:`next_level`; first of all rows' last tokens.

        Returns:
            Whether there are further nodes to ask about.
        """
        indices = np.array([i for i, _ in self._asked], np.int32)
        count = self._shape.num_candidates(self._level)
        lengths = self._known[indices] + self._level
        tokens, chances = self._rank(logits, self._rows[indices], lengths, count)
        found: dict[int, list[tuple[int, list[int], list[float]]]] = {}
        for (i, node), own, likely in zip(
            self._asked, tokens.tolist(), chances.tolist(), strict=True
        ):
            found.setdefault(i, []).append((node, own, likely))
        for i, candidates in found.items():
            self._trees[i].add_level(candidates)
        self._level += 1
        self._before = {asked: place for place, asked in enumerate(self._asked)}
        self._asked = [(i, node) for i in found for node in self._trees[i].frontier()]
        return bool(self._asked)

    def next_level(self) -> Level:
        """Write the tokens of the nodes to be asked about into the table, and say where."""
        counts: dict[int, int] = {}
        starts: dict[int, int] = {}
        paths, parents = [], []
        for i, node in self._asked:
            tree, offsets = self._trees[i], self._offsets[i]
            offset = len(offsets) - 1
            if i not in counts:
                starts[i] = int(self._known[i]) + offset
            counts[i] = counts.get(i, 0) + 1
            parent = tree.parents[node]
            offsets[node] = [*offsets[parent], offset]
            paths.append(offsets[node])
            parents.append(self._before[i, parent])
            self._table.token_ids[self._rows[i], self._known[i] + offset] = tree.tokens[node]
        columns = (list(counts), list(starts.values()), list(counts.values()), parents)
        indices, first, number, before = (np.array(column, np.int32) for column in columns)
        return Level(indices, first, number, paths, before)

    def finish(self) -> list[list[int]]:
        """Write the tokens that are proposed into the table; return their parents."""
        return write_trees(self._table, self._rows, self._trees)

    def num_slots(self) -> Sequence[int]:
        """Return how many slots after the known tokens each row's nodes have taken."""
        return [len(offsets) - 1 for offsets in self._offsets]


def write_trees(table: TokenTable, rows: IntArray, trees: Sequence[TokenTree]) -> list[list[int]]:
    """Write what trees propose into the table, after the rows' known tokens; return the parents."""
    found = []
    for row, tree in zip(rows.tolist(), trees, strict=True):
        tokens, parents = tree.proposal()
        start = int(table.num_tokens[row])
        table.token_ids[row, start : start + len(tokens)] = tokens
        found.append(parents)
    return found
