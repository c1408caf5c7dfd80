"""Every row of the fault matrix names tests that exist."""

from __future__ import annotations

from pathlib import Path

from benchmarks.robustness.faults import rows

TESTS = Path(__file__).parents[1]


def test_every_stated_outcome_has_its_test():
    source = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    stated = rows()
    assert len(stated) >= 19
    for fault, _, tests in stated:
        for name in tests:
            assert f"def {name}(" in source, (fault, name)
