"""Every row of the fault matrix names tests that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.robustness.faults import rows

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(("page", "least"), [("faults", 19), ("cluster", 2)])
def test_every_stated_outcome_has_its_test(page: str, least: int):
    source = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    stated = rows(page)
    assert len(stated) >= least
    for fault, _, tests in stated:
        for name in tests:
            assert f"def {name}(" in source, (fault, name)
