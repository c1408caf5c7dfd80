"""The division of a machine's memory among the engines of several models."""

import pytest

from quire.core.errors import ConfigError
from quire.planner.memory_needs import PROCESS_BYTES, MemoryNeeds, share_memory


def test_what_is_left_is_divided_as_far_as_it_is_of_use():
    needs = [MemoryNeeds(100, 1000), MemoryNeeds(50, 60, num_processes=2)]
    budget = 3 * PROCESS_BYTES + 150 + 200
    assert share_memory(needs, budget) == [290, 60]
    assert share_memory(needs, 10 * budget) == [1000, 60]


def test_models_that_do_not_fit_together_are_refused():
    needs = [MemoryNeeds(100, 1000), MemoryNeeds(50, 60)]
    with pytest.raises(ConfigError, match="must fit in"):
        share_memory(needs, 2 * PROCESS_BYTES + 149)
