"""Where experts are, who multiplies a row, and what is done about busy ones."""

from __future__ import annotations

import numpy as np
import pytest

from quire.layers.parallel.expert_placement import balanced_placement, even_placement


@pytest.mark.parametrize(("num_experts", "size"), [(8, 2), (6, 4), (4, 8), (5, 7), (3, 3)])
def test_every_expert_is_somewhere_and_every_rank_has_a_share(num_experts: int, size: int) -> None:
    placement = even_placement(num_experts, size)
    counts = [len(placement.of(rank)) for rank in range(size)]
    assert all(placement.ranks)
    assert min(counts) >= 1 and max(counts) - min(counts) <= 1


def test_rows_of_an_expert_that_several_have_go_to_each_in_turn() -> None:
    placement = even_placement(2, 4)
    assert placement.ranks == ((0, 1), (2, 3))
    owners = placement.owners(np.array([0, 1, 0, 0, 1, 0], np.int32))
    assert owners.tolist() == [0, 2, 1, 0, 3, 1]


def test_the_busiest_get_copies_and_the_rest_is_level() -> None:
    rows = [100, 10, 10, 10, 10, 10, 10, 10]
    assert even_placement(8, 4).imbalance(rows) == pytest.approx(110 / 42.5)
    assert balanced_placement(rows, 4, 2).imbalance(rows) == pytest.approx(110 / 42.5)
    with_copies = balanced_placement(rows, 4, 3)
    assert len(with_copies.ranks[0]) == 4
    assert with_copies.imbalance(rows) < 1.1
    assert max(len(with_copies.of(rank)) for rank in range(4)) <= 3


def test_without_rows_all_experts_have_a_place() -> None:
    placement = balanced_placement([0] * 6, 4, 2)
    assert all(placement.ranks)
    assert placement.imbalance([0] * 6) == 1.0
