"""Sizes of tests that no parameter spells out: a short one, and with ``--all`` the full one."""

from __future__ import annotations

from typing import TypeVar

import pytest

T = TypeVar("T")
_full: list[bool] = []


def pytest_configure(config: pytest.Config) -> None:
    """Remember what was asked for before modules of tests are imported."""
    _full[:] = [bool(config.getoption("--all", default=False))]


def sized(short: T, full: T) -> T:
    """Return the size of this run: of requests, examples, seconds, or a list of cases."""
    return full if any(_full) else short
