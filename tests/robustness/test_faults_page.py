"""Every row of the fault matrix names tests that exist."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.robustness.faults import figures, rows

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(("page", "least"), [("robustness", 19), ("cluster", 2)])
def test_every_stated_outcome_has_its_test(page: str, least: int):
    source = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    stated = rows(page)
    assert len(stated) >= least
    for fault, _, tests in stated:
        for name in tests:
            assert f"def {name}(" in source, (fault, name)


def test_a_cell_holds_what_tests_have_measured() -> None:
    """The seconds until a server served again were printed, and in no file."""
    report = """<testsuite>
        <testcase><properties>
            <property name="served_again_seconds" value="1.5"/>
            <property name="served_again_seconds" value="0.5"/>
        </properties></testcase>
        <testcase><properties>
            <property name="served_again_seconds" value="4.0"/>
        </properties></testcase>
        <testcase><properties><property name="seconds" value="[0.7, 0.8]"/></properties></testcase>
        <testcase/>
    </testsuite>"""
    found = figures([*ElementTree.fromstring(report).iter("testcase")])
    assert found.keys() == {"served_again_seconds"}
    assert found["served_again_seconds"]["median"] == 1.5
    assert found["served_again_seconds"]["max"] == 4.0
    assert found["served_again_seconds"]["repeats"] == 3
