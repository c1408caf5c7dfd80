"""Fixtures of kernel tests: every instruction set the machine has, and threads put back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quire.kernels.cpu.native import native


@pytest.fixture(params=native.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test on each instruction set in turn; its name."""
    before = native.isa()
    native.set_isa(request.param)
    yield request.param
    native.set_isa(before)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Run the test with one and with two compute threads; their number."""
    before = native.num_threads()
    native.set_num_threads(request.param)
    yield request.param
    native.set_num_threads(before)
