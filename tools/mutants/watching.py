"""A plugin of pytest that writes down which test runs, and which failed, as it goes.

The file outlives a process that a fault has ended; its name is in ``QUIRE_MUTANTS_LOG``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

LOG = "QUIRE_MUTANTS_LOG"


def _write(line: str) -> None:
    with Path(os.environ[LOG]).open("a") as log:
        log.write(f"{line}\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    _write(f"started {nodeid}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _write(f"failed {report.nodeid}")
