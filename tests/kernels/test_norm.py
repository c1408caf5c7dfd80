"""RMSNorm and LayerNorm: exact, rows independent, residual added first."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from quire.core.errors import UnsupportedInputError
from quire.kernels.cpu.backend import CpuBackend
from quire.kernels.cpu.native import native
from tests.kernels.accuracy import assert_as_exact_as_torch

pytestmark = pytest.mark.kernels("rms_norm", "layer_norm")

torch.set_num_threads(1)
BACKEND = CpuBackend(threads=1)
EPS = 1e-5
#: (rows, columns): units, vector tails, odd sizes, an empty batch, several chunks.
SHAPES = [(1, 1), (3, 7), (2, 15), (2, 16), (5, 17), (4, 100), (3, 1027), (0, 32), (40, 2048)]


def rows(shape: tuple[int, int], seed: int, offset: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * 3 + offset).astype(np.float32)


def tensor(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x.copy())


@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm_is_as_exact_as_torchs(isa: str, shape: tuple[int, int]) -> None:
    x, weight = rows(shape, 0), rows((1, shape[1]), 1)[0]
    got = BACKEND.rms_norm(x, weight, EPS, np.empty_like(x))
    wide = x.astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean(1, keepdims=True) + EPS) * weight
    theirs = F.rms_norm(tensor(x), shape[1:], tensor(weight), EPS)
    assert_as_exact_as_torch(got, theirs, exact)


@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm_is_as_exact_as_torchs(isa: str, shape: tuple[int, int], offset: float) -> None:
    x, weight, bias = rows(shape, 0, offset), rows((1, shape[1]), 1)[0], rows((1, shape[1]), 2)[0]
    got = BACKEND.layer_norm(x, weight, bias, EPS, np.empty_like(x))
    wide = x.astype(np.float64)
    centred = wide - wide.mean(1, keepdims=True)
    exact = centred / np.sqrt((centred**2).mean(1, keepdims=True) + EPS) * weight + bias
    theirs = F.layer_norm(tensor(x), shape[1:], tensor(weight), tensor(bias), EPS)
    assert_as_exact_as_torch(got, theirs, exact)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_residual_is_added_to_in_place_then_normalised(isa: str, shape: tuple[int, int]) -> None:
    x, residual = rows(shape, 0), rows(shape, 3)
    weight, bias = rows((1, shape[1]), 1)[0], rows((1, shape[1]), 2)[0]
    total = residual + x
    for with_bias in (False, True):
        added = residual.copy()
        out, want = np.empty_like(x), np.empty_like(x)
        if with_bias:
            BACKEND.layer_norm(x, weight, bias, EPS, out, added)
            BACKEND.layer_norm(total, weight, bias, EPS, want)
        else:
            BACKEND.rms_norm(x, weight, EPS, out, added)
            BACKEND.rms_norm(total, weight, EPS, want)
        np.testing.assert_array_equal(added, total)
        np.testing.assert_array_equal(out, want)


def test_a_rows_bits_depend_on_that_row_alone(isa: str, threads: int) -> None:
    x, weight, bias = rows((50, 1100), 0), rows((1, 1100), 1)[0], rows((1, 1100), 2)[0]
    together = BACKEND.rms_norm(x, weight, EPS, np.empty_like(x))
    layered = BACKEND.layer_norm(x, weight, bias, EPS, np.empty_like(x))
    for row in range(50):
        one = x[row : row + 1]
        alone = BACKEND.rms_norm(one, weight, EPS, np.empty_like(one))
        np.testing.assert_array_equal(alone[0], together[row])
        alone = BACKEND.layer_norm(one, weight, bias, EPS, np.empty_like(one))
        np.testing.assert_array_equal(alone[0], layered[row])


def test_out_may_be_x(isa: str) -> None:
    x, weight = rows((3, 33), 0), rows((1, 33), 1)[0]
    want = BACKEND.rms_norm(x, weight, EPS, np.empty_like(x))
    np.testing.assert_array_equal(BACKEND.rms_norm(x, weight, EPS, x), want)


def test_wrong_arrays_are_refused() -> None:
    x, weight = rows((3, 8), 0), rows((1, 8), 1)[0]
    with pytest.raises(UnsupportedInputError, match=r"weights must have shape \(8,\)"):
        BACKEND.rms_norm(x, weight[:4], EPS, x)
    with pytest.raises(UnsupportedInputError, match="one shape"):
        BACKEND.rms_norm(x, weight, EPS, x, x[:2])
    with pytest.raises(ValueError, match="contiguous"):
        BACKEND.rms_norm(rows((8, 3), 0).T, weight, EPS, x)
    with pytest.raises(ValueError, match="at least"):
        native.rms_norm(x, None, weight, EPS, 4, 8, x)
