"""Trees of proposed tokens: what is asked, what is proposed; settings that are no tree."""

from __future__ import annotations

import random

import numpy as np
import pytest

from quire.core.errors import ConfigError
from quire.core.speculative_config import SpeculativeMethod
from quire.kernels.batch.tree_batch import tree_paths
from quire.settings.speculative_settings import parse_speculative
from quire.speculative.token_tree import ROOT, GrownShape, StaticShape, TokenTree, tree_shape

WIDE = [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]


def grow(tree: TokenTree, width: int, chances: dict[tuple[int, ...], float]) -> list[list[int]]:
    """Grow a tree whose tokens are their ranks, with set chances; return who was asked."""
    ranks: dict[int, tuple[int, ...]] = {ROOT: ()}
    asked = []
    while nodes := tree.frontier():
        asked.append(nodes)
        levels = []
        for node in nodes:
            own = [chances.get((*ranks[node], r), 0.0) for r in range(width)]
            levels.append((node, list(range(width)), own))
        before = len(tree.tokens)
        tree.add_level(levels)
        for node in range(before, len(tree.tokens)):
            ranks[node] = (*ranks[tree.parents[node]], tree.tokens[node])
    return asked


def proposed(tree: TokenTree) -> list[tuple[int, ...]]:
    tokens, parents = tree.proposal()
    return [tuple(tokens[node] for node in path) for path in tree_paths(parents)]


@pytest.mark.parametrize("most", [1, 3, 6, 20])
def test_a_static_tree_has_its_form_and_asks_for_no_more(most: int) -> None:
    tree = TokenTree(StaticShape(tuple(WIDE)), most)
    asked = grow(tree, 3, {})
    assert proposed(tree) == WIDE[:most]
    parents = {ranks[:-1] for ranks in WIDE[:most]}
    assert sum(map(len, asked)) == len(parents)


@pytest.mark.parametrize("seed", range(20))
def test_a_grown_tree_is_the_likeliest_of_all_that_were_looked_at(seed: int) -> None:
    """By brute force: the best of the nodes that are left when each level keeps its best ones."""
    rng = random.Random(seed)
    width, depth, most = rng.randint(2, 4), rng.randint(1, 4), rng.randint(1, 20)
    chances, reached = {}, {(): 1.0}
    level: list[tuple[int, ...]] = [()]
    for _ in range(depth):
        found: list[tuple[int, ...]] = []
        best = sorted(level, key=lambda ranks: -reached[ranks])[:width]
        for ranks in best:
            own = sorted((rng.random() / width for _ in range(width)), reverse=True)
            for r, chance in enumerate(own):
                chances[*ranks, r] = chance
                reached[*ranks, r] = reached[ranks] * chance
                found.append((*ranks, r))
        level = found
    del reached[()]
    tree = TokenTree(GrownShape(width, depth), most)
    asked = grow(tree, width, chances)
    got = proposed(tree)
    assert all(len(nodes) <= width for nodes in asked)
    assert sum(len(nodes) for nodes in asked if nodes != [ROOT]) <= most
    if most >= width * (depth - 1):  # none went unasked for want of slots
        wanted = sorted(reached.values(), reverse=True)[:most]
        np.testing.assert_allclose([reached[ranks] for ranks in got], wanted)
    for i, ranks in enumerate(got):
        assert ranks[:-1] == () or ranks[:-1] in got[:i]


def test_a_token_without_followers_ends_its_branch() -> None:
    tree = TokenTree(GrownShape(2, 3), 8)
    tree.add_level([(ROOT, [4, -1], [0.9, 0.1])])
    assert tree.tokens == [4]
    tree.add_level([(0, [-1, -1], [0.0, 0.0])])
    assert tree.frontier() == []
    assert tree.proposal() == ([4], [ROOT])


@pytest.mark.parametrize("value", ["[(1,), (0, 0), (0,), (0, 1), (1, 0), (0, 0, 0)]", [[1], [0]]])
def test_vllms_text_and_lists_are_read(value: object) -> None:
    config = {"method": "eagle3", "model": "x", "speculative_token_tree": value}
    (method,) = parse_speculative(config).methods
    shape = tree_shape(method)
    assert isinstance(shape, StaticShape)
    assert shape.nodes == tuple(WIDE if isinstance(value, str) else [(0,), (1,)])
    assert method.num_speculative_tokens == len(shape.nodes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"speculative_token_tree": "[(0,), (1, 0)]"}, "must be a tree"),
        ({"speculative_token_tree": "[(0,), (0,)]"}, "must be a tree"),
        ({"speculative_token_tree": "[(0,), (-1,)]"}, "must be a tree"),
        ({"speculative_token_tree": "[()]"}, "must be a tree"),
        ({"speculative_token_tree": "[(0.5,)]"}, "must be a tree"),
        ({"speculative_token_tree": "[" * 5000}, "must be a tree"),
        ({"speculative_token_tree": 7}, "must be a tree"),
        ({"speculative_token_tree": "__import__('os')"}, "must be a tree"),
        ({"speculative_token_tree": "[(0,), (64,)]"}, "must be a tree"),
        ({"speculative_token_tree": "[(0,)]", "num_speculative_tokens": 4}, "the 1 of the tree"),
        ({"speculative_token_tree": "[(0,)]", "tree_width": 2}, "must be left out with"),
        ({"speculative_token_tree": str([(i,) for i in range(65)])}, "must be"),
        ({"tree_width": 1}, "at least 2"),
        ({"tree_width": 65}, "at most 64"),
        ({"tree_depth": 3}, "must come with tree_width"),
        ({"tree_width": 2, "method": "ngram"}, "must be left out of method ngram"),
    ],
    ids=str,
)
def test_what_is_no_tree_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_speculative({"method": "medusa", "model": "x", **settings})


def test_a_grown_tree_has_a_size_of_its_own() -> None:
    method = SpeculativeMethod(method="eagle", model="x", tree_width=4)
    assert (method.num_speculative_tokens, method.has_tree) == (16, True)
    assert tree_shape(method) == GrownShape(4, 5)
