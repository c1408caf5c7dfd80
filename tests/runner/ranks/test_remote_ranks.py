"""Ranks that come by TCP, and what each is told of its machine."""

from __future__ import annotations

import pytest

from quire.runner.ranks.remote_ranks import places_of


@pytest.mark.parametrize(
    ("machines", "places"),
    [
        ("aa", [(0, 2), (1, 2)]),
        ("ab", [(0, 1), (0, 1)]),
        ("aabb", [(0, 2), (1, 2), (0, 2), (1, 2)]),
        ("abab", [(0, 2), (0, 2), (1, 2), (1, 2)]),
        ("abbcb", [(0, 1), (0, 3), (1, 3), (0, 1), (2, 3)]),
    ],
)
def test_a_rank_has_its_place_among_those_of_its_machine(
    machines: str, places: list[tuple[int, int]]
) -> None:
    assert places_of(list(machines)) == places
