"""The instruction set for bfloat16 is measured once for a processor, and what was kept decides."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from quire.kernels.cpu import isa_choice
from quire.kernels.cpu.isa_choice import CoreSpeed, choose_by_speed
from quire.kernels.cpu.native import native

FAST, SLOW = CoreSpeed(2.4e11, 4.5e11), CoreSpeed(1.8e11, 0.9e11)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def chosen(folder, **environment):
    """Return what a process of its own chooses that keeps things in ``folder``."""
    code = "from quire.kernels.cpu.native import isa_choice, native; print(native.isa())"
    variables = {**os.environ, "QUIRE_CACHE": str(folder), **environment}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_faster_one_is_chosen():
    assert choose_by_speed(FAST).isa == "avx512bf16"
    assert choose_by_speed(SLOW).isa == "avx512vnni"
    assert "90 against 180 GFLOP/s" in choose_by_speed(SLOW).reason


def test_what_was_kept_decides_in_every_process(folder):
    best = native.available_isas()[-1]
    measured = chosen(folder)
    assert measured in native.available_isas()
    for speed in (SLOW, FAST):
        isa_choice.remember(speed)
        expected = choose_by_speed(speed).isa if best == "avx512bf16" else best
        assert chosen(folder) == expected
    for isa in ("scalar", *native.emulated_isas()):
        assert chosen(folder, QUIRE_CPU_ISA=isa) == isa


def test_a_folder_that_cannot_be_made_stops_nothing(folder):
    folder.write_text("a file")
    assert chosen(folder) in native.available_isas()


def test_both_rates_are_measured(isa):
    float32, bfloat16 = native.brief_flops(isa)
    assert 1e8 < float32 < 1e13
    assert (bfloat16 > 0) == (isa in ("avx512bf16", "amx"))
    with pytest.raises(ValueError, match="this machine must have it; got sse9"):
        native.brief_flops("sse9")
