"""How many tokens of a tree are proposed, on a simulated engine whose best number is known."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import pytest

from quire.core.speculative_config import SpeculativeMethod
from quire.core.step import SequenceResult
from quire.speculative.pace.controller import Controller
from quire.speculative.pace.tree_acceptance import TreeAcceptance
from quire.speculative.token_tree import ROOT, GrownShape, TokenTree
from tests.sizes import sized
from tests.speculative.pace.test_controller import MACHINES, Decoding, measured

METHOD = SpeculativeMethod(method="medusa", model="heads", tree_width=3, tree_depth=6)
WIDTH = 3
DRAFT_SECONDS = 0.0003


@cache
def proposal(rate: float, most: int) -> dict[tuple[int, int], int]:
    """Return the place of each token of a tree whose candidates are right at a rate.

    By the token's rank and the place of its parent.
    """
    tree = TokenTree(GrownShape(WIDTH, 6), most)
    chances = [rate * (1 - rate) ** rank for rank in range(WIDTH)]
    while nodes := tree.frontier():
        tree.add_level([(node, range(WIDTH), chances) for node in nodes])
    nodes = zip(*tree.proposal(), strict=True)
    return {node: place for place, node in enumerate(nodes)}


def accepted(nodes: dict[tuple[int, int], int], rate: float, rng: random.Random) -> tuple[int, ...]:
    """Return the path of a tree that holds when each right token is drawn at random."""
    path: list[int] = []
    while True:
        rank = next((r for r in range(WIDTH) if rng.random() < rate), -1)
        last = path[-1] if path else ROOT
        if (rank, last) not in nodes:
            return tuple(path)
        path.append(nodes[rank, last])


class Simulated:
    """An engine of one sequence whose proposals are trees."""

    def __init__(self, seconds_of: Callable[[int], float], rate: float) -> None:
        self.seconds_of, self.rate = seconds_of, rate
        self.rng = random.Random(5)
        self.trees = {n: proposal(rate, n) for n in range(1, 17)} | {0: {}}
        self.seconds = self.last = 0.0
        self.num_tokens = 0

    def step(self, size: int) -> SequenceResult:
        path = accepted(self.trees[size], self.rate, self.rng)
        self.num_tokens += len(path) + 1
        self.last = self.seconds_of(1 + size) + DRAFT_SECONDS * bool(size)
        self.last *= self.rng.uniform(0.95, 1.05)
        self.seconds += self.last
        tokens = [1] * (len(path) + 1)
        nodes = path if size else None
        return SequenceResult(tokens, len(path), num_proposed=size, accepted_nodes=nodes)

    @property
    def speed(self) -> float:
        return self.num_tokens / self.seconds


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("rate", [0.0, 0.2, 0.4, 0.6, 0.8])
def test_it_is_as_good_as_the_best_fixed_size(machine: str, rate: float) -> None:
    seconds_of = MACHINES[machine]
    best = 0.0
    for size in (0, 1, 2, 3, 4, 6, 8, 12, 16):
        engine = Simulated(seconds_of, rate)
        for _ in range(sized(700, 1500)):
            engine.step(size)
        best = max(best, engine.speed)
    controller, one = Controller((METHOD,), measured(seconds_of)), Decoding("a")
    engine = Simulated(seconds_of, rate)
    for _ in range(2500):
        (size,) = controller.choose([one], 0)
        result = engine.step(size)
        controller.observe(one, result)
        controller.step_ended(1 + size, engine.last, DRAFT_SECONDS * bool(size))
    assert engine.speed >= 0.94 * best


def test_places_are_known_as_often_as_they_held() -> None:
    acceptance, rng = TreeAcceptance(), random.Random(3)
    nodes = proposal(0.6, 12)
    counts = [0] * 12
    for _ in range(4000):
        path = accepted(nodes, 0.6, rng)
        result = SequenceResult([1], len(path), num_proposed=12, accepted_nodes=path)
        acceptance.observe(result)
        for node in path:
            counts[node] += 1
    expected = acceptance.expected(12)
    assert expected == sorted(expected, reverse=True)
    for place, chance in enumerate(expected):
        assert chance == pytest.approx(counts[place] / 4000, abs=0.12)
    assert sum(expected) == pytest.approx(sum(counts) / 4000, rel=0.1)
    # A chain, for a request that can have no tree, says nothing about places.
    acceptance.observe(SequenceResult([1], 0, num_proposed=4))
    assert acceptance.expected(12) == expected
    assert acceptance.num_drafts == 4001
