"""Instruction sets, storage conversions and exp of the native module."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from quire.kernels.cpu.native import DTYPE_CODES, native
from tests.kernels.conftest import ALL_ISAS

#: They extend avx512.
EXTENDING = {"avx512vnni", "avx512bf16", "amx", "amx_emulated"}
DEFINITIONS = Path(__file__).parents[3] / "native" / "include" / "kernels.def"
pytestmark = pytest.mark.kernels("exp_array", "round_trip")


def exp(x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    native.exp_array(x, x.size, out)
    return out


def test_exp_is_within_two_ulp(isa: str) -> None:
    x = np.linspace(-87.3, 88.7, 200_001, dtype=np.float32)
    want = np.exp(x.astype(np.float64))
    error = np.abs(exp(x) - want) / np.spacing(want.astype(np.float32))
    assert error.max() < 2


def test_exp_at_the_edges(isa: str) -> None:
    x = np.array([-np.inf, -1e30, -104, 0, 89, 1e30, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(
        exp(x), np.array([0, 0, 0, 1, np.inf, np.inf, np.inf, np.nan], np.float32)
    )
    denormal = exp(np.array([-95.0], np.float32))[0]
    assert abs(denormal - np.exp(-95.0)) <= 2 * np.spacing(np.float32(0))


@pytest.mark.parametrize("n", [1, 7, 16, 1000])
def test_bfloat16_rounds_to_nearest_even(isa: str, n: int) -> None:
    rng = np.random.default_rng(n)
    bits = rng.integers(0, 2**32, n, dtype=np.uint32)
    x = bits.view(np.float32)
    x = np.where(np.isnan(x), np.float32(1.00390625), x)  # a tie
    out = np.full(n, 7, np.float32)
    native.round_trip(x, n, DTYPE_CODES["bfloat16"], out)
    b = x.view(np.uint32).astype(np.uint64)
    want = ((b + 0x7FFF + (b >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
    np.testing.assert_array_equal(out, want)


def test_float16_converts_like_numpy(isa: str) -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    halves = halves[~np.isnan(halves)].astype(np.float32)
    between = np.nextafter(halves, np.float32(np.inf))
    x = np.concatenate([halves, between, np.float32([65519.9, 65520, 1e-8, -3e-8, np.inf])])
    out = np.empty_like(x)
    native.round_trip(x, x.size, DTYPE_CODES["float16"], out)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out, x.astype(np.float16).astype(np.float32))


def test_nan_survives_storage(isa: str) -> None:
    x = np.array([np.nan, 0x7F800001, 0x7FFFFFFF], np.float32)
    x[1:] = np.array([0x7F800001, 0x7FFFFFFF], np.uint32).view(np.float32)
    for dtype in DTYPE_CODES.values():
        out = np.zeros_like(x)
        native.round_trip(x, 3, dtype, out)
        assert np.isnan(out).all()


def test_unsafe_buffers_are_refused() -> None:
    x = np.zeros(8, np.float32)
    with pytest.raises(ValueError, match="at least 36 bytes; got 32"):
        native.exp_array(x, 9, np.zeros(9, np.float32))
    with pytest.raises(ValueError, match="contiguous"):
        native.exp_array(x[::2], 4, np.zeros(4, np.float32))
    frozen = np.zeros(8, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        native.exp_array(x, 8, frozen)


def test_an_unknown_isa_is_refused() -> None:
    with pytest.raises(ValueError, match="this machine has scalar"):
        native.set_isa("sse9")


def test_an_instruction_set_owns_the_kernels_that_it_compiles() -> None:
    found = re.findall(
        r"^QUIRE_(OWN_|BFLOAT16_|)KERNEL\(\w+, (\w+),", DEFINITIONS.read_text(), re.MULTILINE
    )
    assert {name for _, name in found} >= {"rms_norm", "linear", "linear_quantized"}
    compiled_by = {
        "OWN_": set(ALL_ISAS),
        "BFLOAT16_": set(ALL_ISAS) - {"avx512vnni"},
        "": set(ALL_ISAS) - EXTENDING,
    }
    for kind, kernel in found:
        wanted = [isa for isa in ALL_ISAS if isa in compiled_by[kind]]
        assert native.own_isas(kernel, emulated=True) == wanted, kernel
        available = [isa for isa in wanted if isa in native.available_isas()]
        assert native.own_isas(kernel) == available, kernel


def test_instruction_sets_of_an_unknown_kernel_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must be one of kernels.def; got norm\."):
        native.own_isas("norm")


@pytest.mark.parametrize("name", native.available_isas())
def test_the_environment_chooses_the_isa(name: str) -> None:
    code = "from quire.kernels.cpu.native import native; print(native.isa())"
    environment = {**os.environ, "QUIRE_CPU_ISA": name}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == name
