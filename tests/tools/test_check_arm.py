"""What scripts/check_arm records of the native module comes out again, and a wrong bit is seen."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from quire.kernels.cpu.native import native
from tools.check_arm.recorded_calls import Call, RecordedTest
from tools.check_arm.replay import Difference, Replay, read_tests

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[RecordedTest]:
    """Tests of norms and of quantized linears, recorded by a process of its own."""
    if "avx2" not in native.available_isas():
        pytest.skip("AVX2's answers are recorded")
    folder = tmp_path_factory.mktemp("calls")
    kernels = ["tests/kernels/test_norm.py", "tests/kernels/test_linear_quantized.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "tools.check_arm.record", *kernels, "-k", "equal or row"]
    environment = {**os.environ, "RECORDED_CALLS": str(folder), "PYTEST_ADDOPTS": ""}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    return list(read_tests(folder))


@pytest.fixture
def avx2() -> Iterator[None]:
    before = native.isa()
    native.set_isa("avx2")
    yield
    native.set_isa(before)


def test_the_same_kernels_give_the_same(recorded: list[RecordedTest], avx2: None) -> None:
    calls = sum(Replay().run(test) for test in recorded)
    assert calls > len(recorded) > 20


def test_one_wrong_bit_is_seen(recorded: list[RecordedTest], avx2: None) -> None:
    test = recorded[0]
    place, call = next(
        (i, e) for i, e in enumerate(test.events) if isinstance(e, Call) and e.content
    )
    number, content = next(iter(call.content.items()))
    wrong = bytes([content[0] ^ 1]) + content[1:]
    test.events[place] = replace(call, content={number: wrong})
    try:
        with pytest.raises(Difference, match=f"{call.name}: 1 of"):
            Replay().run(test)
    finally:
        test.events[place] = call


def test_other_arithmetic_is_seen(recorded: list[RecordedTest]) -> None:
    before = native.isa()
    native.set_isa("scalar")
    try:
        norms = [test for test in recorded if "test_norm" in test.name]
        with pytest.raises(Difference):
            for test in norms:
                Replay().run(test)
    finally:
        native.set_isa(before)
