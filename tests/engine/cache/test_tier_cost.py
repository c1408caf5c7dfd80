"""How many blocks are worth loading, against the sum itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quire.engine.cache.tier_cost import num_worth_loading

seconds = st.integers(0, 50).map(float)


@given(st.lists(seconds, max_size=12), seconds, seconds)
def test_it_is_the_cheapest_number_of_leading_blocks(load, start, compute):
    def cost(count):
        return (start if count else 0) + sum(load[:count]) + compute * (len(load) - count)

    found = num_worth_loading(load, start, compute)
    least = min(map(cost, range(len(load) + 1)))
    assert cost(found) == least
    assert found == max(count for count in range(len(load) + 1) if cost(count) == least)


def test_examples():
    assert num_worth_loading([], 0.0, 1.0) == 0
    assert num_worth_loading([0.1, 0.1], 0.0, 1.0) == 2
    assert num_worth_loading([2.0, 0.1], 0.0, 1.0) == 0, "the first is on the way to the second"
    assert num_worth_loading([0.1, 5.0], 0.0, 1.0) == 1
    assert num_worth_loading([0.1] * 5, 4.0, 1.0) == 5
    assert num_worth_loading([0.1] * 4, 4.0, 1.0) == 0
