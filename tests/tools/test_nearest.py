"""Circle 0 takes the nearest files that fit in its seconds."""

from __future__ import annotations

import pytest

from tests.nearest import nearest

NEAREST = ["near", "next", "new"]


@pytest.mark.parametrize(
    ("budget", "chosen"),
    [
        (1.0, ["near"]),
        (6.0, ["near", "next"]),
        (7.9, ["near", "next"]),
        (8.0, ["near", "next", "new"]),
    ],
)
def test_the_nearest_that_fit_and_one_at_least(budget, chosen):
    seconds = {"near": 5.0, "next": 1.0, "far": 0.1}
    assert nearest([*NEAREST, "far"], seconds, budget) == chosen
