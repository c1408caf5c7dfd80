"""A bounded form of ``scripts/hostile_pictures``."""

import pytest

pytest.importorskip("PIL")

from benchmarks.robustness.hostile_pictures import run


def test_hostile_pictures_are_refused_and_nothing_else_is_connected_to():
    outcome = run(64, slow=False)
    assert outcome["wrong"] == []
    assert outcome["cases"] == 64 and outcome["connections_allowed"] > 0
