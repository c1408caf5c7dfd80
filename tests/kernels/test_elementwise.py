"""Factors, soft caps and sums of rows against torch, far values included."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quire.core.errors import UnsupportedInputError
from quire.kernels.cpu.backend import CpuBackend
from quire.kernels.reference.backend import ReferenceBackend
from tests.kernels.accuracy import assert_as_exact_as_torch

pytestmark = pytest.mark.kernels("scale", "soft_cap", "add_residual")

BACKEND, REFERENCE = CpuBackend(threads=1), ReferenceBackend()
SHAPES = [(1, 1), (3, 7), (2, 16), (5, 33), (0, 8), (9, 4096)]


def rows(shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 40).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_scale(isa: str, threads: int, shape: tuple[int, int]) -> None:
    x = rows(shape)
    want = x * np.float32(0.3)
    np.testing.assert_array_equal(BACKEND.scale(x, 0.3, np.empty_like(x)), want)
    np.testing.assert_array_equal(BACKEND.scale(x, 0.3, x), want)


@pytest.mark.parametrize("shape", SHAPES)
def test_soft_cap_is_as_exact_as_torchs(isa: str, shape: tuple[int, int]) -> None:
    x = rows(shape)
    x[:, :1] = 3e38
    got = BACKEND.soft_cap(x, 30.0, np.empty_like(x))
    exact = 30 * np.tanh(x.astype(np.float64) / 30)
    theirs = REFERENCE.soft_cap(torch.from_numpy(x), 30.0, torch.empty(shape))
    assert_as_exact_as_torch(got, theirs, exact)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("with_copy", [False, True])
def test_add_residual(isa: str, shape: tuple[int, int], with_copy: bool) -> None:
    x, residual = rows(shape), rows(shape, 1)
    want = residual + x
    total = REFERENCE.add_residual(*map(torch.from_numpy, (x.copy(), residual.copy())))
    np.testing.assert_array_equal(total.numpy(), want)
    out = x if with_copy else None
    assert BACKEND.add_residual(x, residual, out) is residual
    np.testing.assert_array_equal(residual, want)
    if with_copy:
        np.testing.assert_array_equal(x, want)


def test_rows_of_other_shapes_are_refused() -> None:
    x = rows((2, 3))
    with pytest.raises(UnsupportedInputError, match=r"\[scale\] rows must all have one shape"):
        BACKEND.scale(x, 2.0, np.empty((2, 4), np.float32))
    with pytest.raises(UnsupportedInputError, match=r"\[add_residual\] rows must all have one"):
        BACKEND.add_residual(x, x[:1], None)
