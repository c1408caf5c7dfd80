"""Linear: right within twice torch's error, and each row the same bits whatever the others are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quire.core.errors import UnsupportedInputError
from quire.kernels.cpu.linear import CpuLinear
from quire.kernels.cpu.native import native
from quire.kernels.matrices.host_tensor import HostTensor
from tests.kernels.conftest import ALL_ISAS

ISAS = ALL_ISAS
pytestmark = pytest.mark.kernels("pack_linear", "linear", "lookup_rows")
TORCH = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

#: (in_features, out_features): units, tails of every vector, pair and panel, block borders.
SHAPES = [(1, 1), (2, 31), (31, 32), (33, 33), (96, 64), (255, 7), (256, 96), (513, 100), (704, 65)]


def host(values: torch.Tensor, dtype: str, name: str = "w") -> HostTensor:
    """Round float32 values to ``dtype`` and hold them as a checkpoint would."""
    typed = values.to(TORCH[dtype])
    raw = typed.view(torch.uint16) if dtype == "bfloat16" else typed
    return HostTensor(name, dtype, raw.numpy())


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator)


def errors(layer: CpuLinear, x: torch.Tensor, weight: torch.Tensor) -> tuple[float, float]:
    """Greatest error of our product and of torch's in the weights' dtype, against float64."""
    exact = x.double() @ weight.double().T
    ours = torch.from_numpy(layer(x.numpy())).double()
    theirs = (x.to(weight.dtype) @ weight.T).double()
    return (ours - exact).abs().max().item(), (theirs - exact).abs().max().item()


@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_error_is_at_most_twice_torchs(isa: str, dtype: str, inputs: int, outputs: int) -> None:
    weight = normal(outputs, inputs).to(TORCH[dtype])
    layer = CpuLinear([host(weight.float(), dtype)], [], dtype)
    for rows in (1, 2, 13, 50):
        ours, theirs = errors(layer, normal(rows, inputs, seed=rows), weight)
        assert ours <= 2 * theirs + 1e-6 * inputs**0.5


@pytest.mark.parametrize("dtype", TORCH)
def test_a_long_sum_is_as_exact_as_torchs(isa: str, dtype: str) -> None:
    weight = normal(40, 8192).to(TORCH[dtype])
    ours, theirs = errors(
        CpuLinear([host(weight.float(), dtype)], [], dtype), normal(3, 8192, seed=1), weight
    )
    assert ours <= 2 * theirs + 1e-5


@pytest.mark.parametrize("dtype", TORCH)
def test_a_rows_bits_depend_on_that_row_alone(isa: str, dtype: str) -> None:
    inputs, outputs, most = 600, 230, 2048
    layer = CpuLinear([host(normal(outputs, inputs), dtype)], [], dtype)
    x = normal(most, inputs, seed=2).numpy()
    before = native.num_threads()
    native.set_num_threads(1)
    alone = np.concatenate([layer(x[i : i + 1]) for i in range(40)])
    for threads in (1, 2):
        native.set_num_threads(threads)
        for rows in range(2, 41):
            np.testing.assert_array_equal(layer(x[:rows]), alone[:rows])
            np.testing.assert_array_equal(layer(x[40 - rows : 40]), alone[40 - rows :])
        np.testing.assert_array_equal(layer(x)[:40], alone)
        np.testing.assert_array_equal(layer(x[::-1].copy())[-40:][::-1], alone)
    native.set_num_threads(before)


@pytest.mark.parametrize("source", TORCH)
@pytest.mark.parametrize("dtype", TORCH)
def test_lookup_returns_the_rounded_weights(
    isa: str, threads: int, source: str, dtype: str
) -> None:
    weight = normal(70, 101)
    layer = CpuLinear([host(weight, source)], [], dtype)
    ids = np.array([69, 0, 31, 32, 33, 69, 5], np.int32)
    want = weight.to(TORCH[source]).to(TORCH[dtype]).float()[torch.from_numpy(ids).long()]
    np.testing.assert_array_equal(layer.lookup(ids), want.numpy())
    assert layer.lookup(ids[:0]).shape == (0, 101)


def test_stacked_matrices_and_biases_are_one_product(isa: str) -> None:
    parts = [normal(rows, 48, seed=rows) for rows in (40, 17, 17)]
    biases = [normal(rows, seed=100 + rows) for rows in (40, 17, 17)]
    layer = CpuLinear(
        [host(part, "float32") for part in parts],
        [host(bias, "bfloat16") for bias in biases],
        "float32",
    )
    assert (layer.in_features, layer.out_features) == (48, 74)
    x = normal(5, 48, seed=3)
    bias = torch.cat(biases).to(torch.bfloat16).double()
    want = x.double() @ torch.cat(parts).double().T + bias
    out = np.empty((5, 74), np.float32)
    assert layer(x.numpy(), out) is out
    np.testing.assert_allclose(out, want.numpy(), rtol=0, atol=2e-5)


def test_no_rows_give_no_rows() -> None:
    layer = CpuLinear([host(normal(4, 8), "float32")], [], "float32")
    assert layer(np.empty((0, 8), np.float32)).shape == (0, 4)


def test_weights_that_do_not_stack_are_refused() -> None:
    a, b = host(normal(4, 8), "float32"), host(normal(4, 9), "float32")
    with pytest.raises(UnsupportedInputError, match="of one in"):
        CpuLinear([a, b], [], "float32")
    with pytest.raises(UnsupportedInputError, match="none empty"):
        CpuLinear([host(normal(4, 0), "float32")], [], "float32")
    with pytest.raises(UnsupportedInputError, match="must stack to"):
        CpuLinear([a], [host(normal(5), "float32")], "float32")
    with pytest.raises(UnsupportedInputError, match="dtype must be one of"):
        CpuLinear([a], [], "int8")


def test_wrong_inputs_are_refused() -> None:
    layer = CpuLinear([host(normal(4, 8), "float32")], [], "float32")
    with pytest.raises(UnsupportedInputError, match="must have shape"):
        layer(np.zeros((2, 9), np.float32))
    with pytest.raises(ValueError, match="inside the table"):
        layer.lookup(np.array([4], np.int32))
    with pytest.raises(ValueError, match="float32"):
        layer(np.zeros((2, 8), np.float64))
    with pytest.raises(ValueError, match="at least"):
        layer(np.zeros((2, 8), np.float32), np.zeros((1, 4), np.float32))
