"""A proposer that knows the answers: each token that it proposes is right with a set probability.

In a tree the second candidate of a position is right with the same probability when the first is
wrong, and so on. It stands in for drafters of any quality, on checkpoints that have none: what
speculation costs and brings is then a matter of the engine alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from quire.core.speculative_config import SpeculativeMethod
from quire.engine.scheduling.lookahead import Lookahead
from quire.kernels.batch.token_table import IntArray, TokenTable
from quire.llm.text_engine import TextEngine
from quire.speculative.drafters.tree_drafting import write_trees
from quire.speculative.pace.controller import Controller
from quire.speculative.proposer import DraftDraw, Rank
from quire.speculative.token_tree import ROOT, TokenTree, TreeShape


class ScriptedProposer:
    """Proposes from whole sequences that begin like a row does, or anything where none does.

    Args:
        table: Of the rows.
        sequences: Prompts with what the model answers to them.
        rate: Probability that a proposed token is the right one.
        vocab_size: Wrong ones are below it.
        seed: Of what is wrong.
    """

    def __init__(
        self,
        table: TokenTable,
        sequences: Iterable[Sequence[int]],
        rate: float,
        vocab_size: int,
        seed: int = 0,
    ) -> None:
        self._table = table
        self._sequences = [list(sequence) for sequence in sequences]
        self._rate = rate
        self._vocab_size = vocab_size
        self._random = random.Random(seed)
        self._known: dict[int, list[int]] = {}  # what a row went on like so far

    def begin(self, row: int, extra_keys: tuple[str, ...]) -> None:
        """Know nothing of the row."""
        self._known.pop(row, None)

    def forget(self, row: int) -> None:
        """Have nothing to let go of."""

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Keep nothing by block."""

    def propose(self, rows: IntArray, most: IntArray, draw: DraftDraw) -> IntArray:
        """Propose as many as it may."""
        for row, count in zip(rows.tolist(), most.tolist(), strict=True):
            known = self._table.tokens(row).tolist()
            right = self._continuation(row, known)[:count]
            right += [self._wrong(-1) for _ in range(count - len(right))]
            proposed = [t if self._random.random() < self._rate else self._wrong(t) for t in right]
            self._table.token_ids[row, len(known) : len(known) + count] = proposed
        return most

    def propose_trees(
        self, rows: IntArray, most: IntArray, shape: TreeShape, rank: Rank
    ) -> list[list[int]]:
        """Propose trees, whose wrong tokens are followed by wrong ones."""
        trees = []
        for row, count in zip(rows.tolist(), most.tolist(), strict=True):
            right = self._continuation(row, self._table.tokens(row).tolist())
            tree, path = TokenTree(shape, count), [ROOT]
            while nodes := tree.frontier():
                level = tree.level
                width = shape.num_candidates(level)
                chances = [self._rate * (1 - self._rate) ** place for place in range(width)]
                token = right[level] if level < len(right) else -1
                first = len(tree.tokens)
                tree.add_level(
                    [(n, self._candidates(token, width, n == path[-1]), chances) for n in nodes]
                )
                followers = (
                    node
                    for node in range(first, len(tree.tokens))
                    if tree.parents[node] == path[-1] and tree.tokens[node] == token
                )
                path.append(next(followers, len(tree.tokens)))
            trees.append(tree)
        return write_trees(self._table, rows, trees)

    def _candidates(self, right: int, width: int, may_be_right: bool) -> list[int]:
        """Return tokens, one of them right as often as the rate says."""
        found = [self._wrong(right) for _ in range(width)]
        for place in range(width if may_be_right and right >= 0 else 0):
            if self._random.random() < self._rate:
                found[place] = right
                break
        return found

    def _continuation(self, row: int, known: list[int]) -> list[int]:
        length = len(known)
        for sequence in (self._known.get(row, []), *self._sequences):
            if len(sequence) > length and sequence[:length] == known:
                self._known[row] = sequence
                return sequence[length:]
        return []

    def _wrong(self, right: int) -> int:
        return (right + 1 + self._random.randrange(self._vocab_size - 1)) % self._vocab_size


def use_script(
    engine: TextEngine,
    sequences: Iterable[Sequence[int]],
    rate: float,
    *,
    seed: int = 0,
    controller: Controller | None = None,
    **settings: Any,
) -> Controller:
    """Have an engine speculate with a :class:`ScriptedProposer`; return what chooses lengths.

    Args:
        engine: That was started without speculation.
        sequences: As of :class:`ScriptedProposer`.
        rate, seed: As there.
        controller: Goes on with what it has learned of the same settings; None: a new one.
        **settings: Of :class:`SpeculativeMethod`, such as ``num_speculative_tokens``.
    """
    scheduler, runner = engine.engine.scheduler, engine.executor.runner
    assert runner is not None
    vocab_size = engine.model_config.vocab_size
    known = list(sequences)
    methods = (SpeculativeMethod(method="medusa", **settings),)  # whose proposals may be trees
    runner.speculate(
        methods, lambda table: {"medusa": ScriptedProposer(table, known, rate, vocab_size, seed)}
    )
    if controller is None:
        controller = Controller(
            methods, engine.executor.measure_rows() if methods[0].adaptive else {}
        )
    scheduler.lookahead = Lookahead(scheduler.kv, controller, scheduler.options)
    return controller
