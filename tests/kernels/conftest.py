"""Fixtures of kernel tests: every instruction set the machine has, and threads put back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quire.kernels.cpu.native import native

#: What tests of linears and attention run on: emulated instruction sets have their own.
ALL_ISAS = [*native.available_isas(), *native.emulated_isas()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give ``isa`` the instruction sets of the test's module, ``ISAS``, or those of the machine."""
    if "isa" in metafunc.fixturenames:
        isas = getattr(metafunc.module, "ISAS", native.available_isas())
        metafunc.parametrize("isa", isas, indirect=True)


@pytest.fixture
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test on an instruction set; its name."""
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
