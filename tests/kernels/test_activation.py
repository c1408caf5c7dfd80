"""Activations, plain and gated: as exact as torch's, far tails included."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from quire.core.errors import UnsupportedInputError
from quire.kernels.cpu.backend import CpuBackend
from quire.kernels.reference.activation import activate, gated
from tests.kernels.accuracy import assert_as_exact_as_torch
from tests.lazy_packages import lazy_package

pytestmark = pytest.mark.kernels("activation", "gated_activation")

transformers = lazy_package("transformers")
torch.set_num_threads(1)
BACKEND = CpuBackend(threads=1)
TORCH = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: transformers.activations.QuickGELUActivation()(x),
}
SHAPES = [(1, 1), (3, 7), (2, 16), (5, 33), (0, 8), (9, 4096)]


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("shape", SHAPES)
def test_is_as_exact_as_torch(isa: str, threads: int, name: str, shape: tuple[int, int]) -> None:
    x = (np.random.default_rng(0).standard_normal(shape) * 4).astype(np.float32)
    exact = activate(torch.from_numpy(x).double(), name).numpy()
    got = BACKEND.activation(x, name, np.empty_like(x))
    assert_as_exact_as_torch(got, TORCH[name](torch.from_numpy(x)), exact)


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("shape", SHAPES)
def test_gated_multiplies_by_the_right_half(isa: str, name: str, shape: tuple[int, int]) -> None:
    rows, columns = shape
    x = np.random.default_rng(0).standard_normal((rows, 2 * columns)).astype(np.float32) * 3
    wide = torch.from_numpy(x).double()
    exact = (activate(wide[:, :columns], name) * wide[:, columns:]).numpy()
    narrow = torch.from_numpy(x)
    theirs = TORCH[name](narrow[:, :columns]) * narrow[:, columns:]
    got = BACKEND.gated_activation(x, name, np.empty(shape, np.float32))
    assert_as_exact_as_torch(got, theirs, exact)


@pytest.mark.parametrize("shape", SHAPES)
def test_clamped_swiglu_is_that_of_gpt_oss(isa: str, shape: tuple[int, int]) -> None:
    rows, columns = shape
    x = np.random.default_rng(0).standard_normal((rows, 2 * columns)).astype(np.float32) * 6
    narrow = torch.from_numpy(x)
    theirs = swiglu_of_transformers(narrow[:, :columns], narrow[:, columns:])
    wide = narrow.double()
    exact = swiglu_of_transformers(wide[:, :columns], wide[:, columns:]).numpy()
    got = BACKEND.gated_activation(x, "clamped_swiglu", np.empty(shape, np.float32))
    assert_as_exact_as_torch(got, theirs, exact)
    np.testing.assert_allclose(gated(narrow, "clamped_swiglu"), exact, rtol=1e-5, atol=1e-6)


def swiglu_of_transformers(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return what its experts make of gates and factors, which it takes in turn."""
    rows, columns = gate.shape
    experts = transformers.models.gpt_oss.modeling_gpt_oss.GptOssExperts(
        transformers.GptOssConfig(hidden_size=1, intermediate_size=columns, num_local_experts=1)
    )
    return experts._apply_gate(torch.stack([gate, up], dim=-1).reshape(rows, 2 * columns))


def test_clamped_swiglu_takes_pairs_alone() -> None:
    x = np.zeros((2, 8), np.float32)
    with pytest.raises(
        UnsupportedInputError, match="silu, gelu, gelu_tanh, quick_gelu; got 'clamped_swiglu'"
    ):
        BACKEND.activation(x, "clamped_swiglu", x)


@pytest.mark.parametrize("name", TORCH)
def test_tails_are_finite_and_right(isa: str, name: str) -> None:
    x = np.array([[-1e4, -200, -30, -12, -6, -0.0, 0, 6, 12, 200, 1e4]], np.float32)
    got = BACKEND.activation(x, name, np.empty_like(x))
    exact = activate(torch.from_numpy(x).double(), name).numpy()
    np.testing.assert_allclose(got, exact, rtol=1e-6, atol=2e-7)


def test_gelu_over_its_whole_curve(isa: str) -> None:
    x = np.linspace(-8, 8, 40_001, dtype=np.float32)[None]
    got = BACKEND.activation(x, "gelu", np.empty_like(x))
    exact = np.array([v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in x[0].astype(float)])
    assert np.abs(got[0] - exact).max() < 1e-6
    assert (np.abs(got[0] - exact) / np.maximum(np.abs(exact), 1e-3)).max() < 2e-6


def test_nan_stays_and_out_may_be_x(isa: str) -> None:
    x = np.array([[np.nan, 1.0]], np.float32)
    for name in TORCH:
        assert np.isnan(BACKEND.activation(x.copy(), name, np.empty_like(x))[0, 0])
    want = BACKEND.activation(x, "silu", np.empty_like(x))
    np.testing.assert_array_equal(BACKEND.activation(x, "silu", x), want)


def test_wrong_arrays_are_refused() -> None:
    x = np.zeros((2, 6), np.float32)
    with pytest.raises(
        UnsupportedInputError, match="silu, gelu, gelu_tanh, quick_gelu; got 'relu'"
    ):
        BACKEND.activation(x, "relu", x)
    with pytest.raises(UnsupportedInputError, match=r"out must have shape \(2, 3\)"):
        BACKEND.gated_activation(x, "silu", x)
    with pytest.raises(ValueError, match="contiguous"):
        BACKEND.gated_activation(np.zeros((2, 8), np.float32)[:, :6], "silu", x[:, :3].copy())
