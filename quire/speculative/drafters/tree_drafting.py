"""Trees that a drafter grows level by level, of several rows at once.

A drafter with a cache of its own computes nodes in the order in which it is asked about them. They
take the slots after those of the known tokens. B rows of the token table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.kernels.backend import Array
from quire.kernels.batch.token_table import IntArray, TokenTable
from quire.kernels.batch.tree_batch import BatchTree
from quire.speculative.proposer import Rank
from quire.speculative.token_tree import ROOT, TokenTree, TreeShape


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes that are asked next what follows them, row after row.

    Attributes:
        indices: (R,) indices, among the B, of the rows that have such nodes.
        starts: (R,) position whose slot takes the first of them.
        counts: (R,) number of each row's nodes.
        paths: Offsets of each node's ancestors and its own, in slots after the row's known tokens.
        parents: Place of each node's parent in the level before; 0 below the root.
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


@dataclass(frozen=True, slots=True)
class DraftedTrees:
    """Trees of drafters that draft all levels at once.

    Attributes:
        table: The token table of the target's runner.
        rows: (B,) rows of the table.
        most: (B,) tokens that each may get.
        depths: (B,) levels that each has logits for.
        shape: Shape of each tree.
    """

    table: TokenTable
    rows: IntArray
    most: IntArray
    depths: IntArray
    shape: TreeShape


class TreeDrafting:
    """The trees of a step.

    Args:
        table: The token table of the target's runner.
        rows: (B,) rows of the table.
        most: (B,) tokens that each may get.
        shape: Shape of each tree.
        rank: The target's ranking.
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


def draft_by_level(
    drafted: DraftedTrees, rank: Rank, logits_of: Callable[[int, npt.NDArray[np.int64]], Array]
) -> list[list[int]]:
    """Grow trees whose tokens of a level share the candidates, and write them into the table.

    Args:
        drafted: The trees' rows, limits and shape.
        rank: The target's ranking.
        logits_of: Function that returns the logits (L, V) of a level for L of the rows, which it
            gets as indices.

    Returns:
        The parents of each row's tokens.
    """
    rows, depths, shape = drafted.rows, drafted.depths, drafted.shape
    known = drafted.table.num_tokens[rows]
    trees = [TokenTree(shape, count) for count in drafted.most.tolist()]
    live = np.arange(len(rows), dtype=np.int64)
    for level in range(int(depths.max(initial=0))):
        frontiers = {i: trees[i].frontier() for i in live.tolist() if depths[i] > level}
        live = np.array([i for i, nodes in frontiers.items() if nodes], np.int64)
        if not len(live):
            break
        lengths, count = known[live] + level, shape.num_candidates(level)
        found = rank(logits_of(level, live), rows[live], lengths, count)
        tokens, chances = (column.tolist() for column in found)
        for i, own, likely in zip(live.tolist(), tokens, chances, strict=True):
            trees[i].add_level([(node, own, likely) for node in frontiers[i]])
    return write_trees(drafted.table, rows, trees)


def write_trees(table: TokenTable, rows: IntArray, trees: Sequence[TokenTree]) -> list[list[int]]:
    """Write what trees propose into the table, after the rows' known tokens; return the parents."""
    found = []
    for row, tree in zip(rows.tolist(), trees, strict=True):
        tokens, parents = tree.proposal()
        start = int(table.num_tokens[row])
        table.token_ids[row, start : start + len(tokens)] = tokens
        found.append(parents)
    return found
