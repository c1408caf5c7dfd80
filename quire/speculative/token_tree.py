"""Trees of proposed tokens: which tokens are asked what follows them, and which are proposed.

A tree has a root, the last known token, and several candidates for each of the tokens to come. It
grows level by level: *static* trees have a set form (Cai et al. 2024, Medusa), others grow where
their candidates are likely (Li et al. 2024, EAGLE-2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.speculative_config import DEFAULT_TREE_DEPTH, SpeculativeMethod

ROOT = -1

#: A token by its ranks among the candidates at each level: (0, 1) is the second after the best.
Ranks = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StaticShape:
    """A set form.

    Attributes:
        nodes: The tree's nodes level by level, each after its parent.
    """

    nodes: tuple[Ranks, ...]

    @property
    def depth(self) -> int:
        """Number of levels."""
        return max(map(len, self.nodes))

    def num_candidates(self, level: int) -> int:
        """Return how many candidates a token of a level (the root's is 0) needs at most."""
        return max((ranks[-1] + 1 for ranks in self.nodes if len(ranks) == level + 1), default=0)


@dataclass(frozen=True, slots=True)
class GrownShape:
    """A form that follows the candidates' chances.

    Attributes:
        width: Candidates of a token, and tokens of a level that get some.
        depth: Levels.
    """

    width: int
    depth: int

    def num_candidates(self, level: int) -> int:
        """Return how many candidates a token of a level (the root's is 0) gets."""
        return self.width if level < self.depth else 0


TreeShape = StaticShape | GrownShape


def tree_shape(method: SpeculativeMethod) -> TreeShape:
    """Return the form of a method's trees."""
    if method.tree_width is None:
        by_level = sorted(method.speculative_token_tree, key=lambda ranks: (len(ranks), ranks))
        return StaticShape(tuple(by_level))
    return GrownShape(method.tree_width, method.tree_depth or DEFAULT_TREE_DEPTH)


class TokenTree:
    """One sequence's tree while it grows.

    Args:
        shape: The tree's form.
        most: Tokens that may be proposed, and be asked what follows them.

    Attributes:
        tokens, parents: Token and parent of each node, each after its parent; :data:`ROOT` at the
            top.
        level: Level of the nodes that are next to be asked what follows them; the root's is 0.
    """

    def __init__(self, shape: TreeShape, most: int) -> None:
        self._shape = shape
        self._most = most
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.level = 0
        self._ranks: list[Ranks] = []
        self._chances: list[float] = []  # that all tokens up to each are right
        self._last_level: list[int] = [ROOT]
        self._num_asked = 0

    def frontier(self) -> list[int]:
        """Return the nodes to be asked what follows them; none when the tree is complete."""
        if self._shape.num_candidates(self.level) == 0 or self._num_asked >= self._most:
            return []
        if isinstance(self._shape, StaticShape):
            asked = {ranks[:-1] for ranks in self._shape.nodes[: self._most]}
            found = [node for node in self._last_level if self._ranks_of(node) in asked]
        else:
            found = sorted(self._last_level, key=self._chance_of, reverse=True)
            found = found[: self._shape.width]
        return found[: self._most - self._num_asked]

    def add_level(self, candidates: Sequence[tuple[int, Sequence[int], Sequence[float]]]) -> None:
        """Add what may follow the :meth:`frontier`.

        Args:
            candidates: Node, tokens (best first; -1: none) and their chances, falling.
        """
        added: list[int] = []
        for node, tokens, chances in candidates:
            self._num_asked += node != ROOT
            ranks, chance = self._ranks_of(node), self._chance_of(node)
            for rank, (token, likely) in enumerate(zip(tokens, chances, strict=True)):
                wanted = isinstance(self._shape, GrownShape) or (*ranks, rank) in self._shape.nodes
                if token >= 0 and wanted:
                    added.append(len(self.tokens))
                    self.tokens.append(token)
                    self.parents.append(node)
                    self._ranks.append((*ranks, rank))
                    self._chances.append(chance * likely)
        self._last_level = added
        self.level += 1

    def proposal(self) -> tuple[list[int], list[int]]:
        """Return tokens and parents of the nodes to be proposed, at most ``most``.

        The likeliest come first, or those that a set form has first; each after its parent.
        """
        nodes = list(range(len(self.tokens)))
        if isinstance(self._shape, GrownShape):
            nodes.sort(key=self._chance_of, reverse=True)  # a parent's is no less, and it was first
        nodes = nodes[: self._most]
        index = {node: i for i, node in enumerate(nodes)} | {ROOT: ROOT}
        return [self.tokens[n] for n in nodes], [index[self.parents[n]] for n in nodes]

    def _ranks_of(self, node: int) -> Ranks:
        return self._ranks[node] if node != ROOT else ()

    def _chance_of(self, node: int) -> float:
        return self._chances[node] if node != ROOT else 1.0
