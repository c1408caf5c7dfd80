"""Fixtures of kernel tests: every instruction set the machine has, and threads put back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quire.kernels.cpu.native import native

#: What tests of linears and attention run on: emulated instruction sets have their own.
ALL_ISAS = [*native.available_isas(), *native.emulated_isas()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give ``isa`` the instruction sets of the test's module, ``ISAS``, or those of the machine.

    Of these, a test that names its kernels, ``pytest.mark.kernels``, runs on those that compile one
    of them themselves: the others have the same machine code. ``--all`` runs it on each name.
    """
    if "isa" not in metafunc.fixturenames:
        return
    isas = getattr(metafunc.module, "ISAS", native.available_isas())
    kernels = metafunc.definition.get_closest_marker("kernels")
    if kernels is not None and not metafunc.config.getoption("--all", default=False):
        own = {isa for name in kernels.args for isa in native.own_isas(name, emulated=True)}
        isas = [isa for isa in isas if isa in own]
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
