"""A bounded form of ``scripts/hostile_pictures``."""

import pytest

pytest.importorskip("PIL")

from benchmarks.robustness.hostile_pictures import run
from tests.sizes import sized


def test_hostile_pictures_are_refused_and_nothing_else_is_connected_to():
    num_cases = sized(64, 520)
    outcome = run(num_cases, slow=False, num_parts=sized(4, 10))
    assert outcome["wrong"] == []
    assert outcome["cases"] == num_cases and outcome["connections_allowed"] > 0
