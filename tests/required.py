"""Where everything that tests need was installed, a test that skips fails.

A pytest plugin; ``scripts/install_test_programs`` installs the programs, ``QUIRE_REQUIRE_ALL=1``
turns the rule on.
Elsewhere tests skip what a machine does not have. The reasons that hold everywhere are listed here.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TypeVar

import pytest

#: Beginnings of reasons with which a test may skip although everything was installed.
MAY_SKIP = {
    "run scripts/test_clients": "it has an environment of its own, in which nothing may skip",
    "run scripts/test_ray": "the same",
    "needs the packages and the server of scripts/test_clients": "the same",
    "the real vocabularies are not at ": "they lie next to the checkout, not in it",
    "no recorded trace next to the checkout": "the same",
    "pictures need matplotlib": "pip install --group plots",
    "needs to make control groups": "a right that not every container gives",
    "the system refuses memory policies": "the same",
    "emulated tiles need AVX512-VNNI": "an instruction set that not every machine has",
    "no dot products of bfloat16": "the same",
    "binding needs two processors": "not every machine has them",
    "torch's attention rounds differently with the shapes": "the reference promises no equal bits",
    "smollm2 is not on this machine": "98 MB that no test needs to fetch: quire pull smollm2",
}

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def _judge(report: Report) -> Report:
    if not report.skipped or hasattr(report, "wasxfail"):
        return report
    assert isinstance(report.longrepr, tuple), report.longrepr
    path, line, message = report.longrepr
    reason = message.removeprefix("Skipped: ")
    if not any(reason.startswith(beginning) for beginning in _may_skip()):
        report.outcome = "failed"
        report.longrepr = f"{path}:{line}: skipped where everything is installed: {reason}"
    return report


def _may_skip() -> tuple[str, ...]:
    return () if "QUIRE_CLIENTS_URL" in os.environ else tuple(MAY_SKIP)


def _is_set() -> bool:
    return os.environ.get("QUIRE_REQUIRE_ALL") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Judge a test."""
    report = yield
    return _judge(report) if _is_set() else report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Judge a file that skips as a whole."""
    report = yield
    return _judge(report) if _is_set() else report
