"""Linears of lattice codes: products with rotated activations against dequantized matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from quire.core.errors import UnsupportedInputError
from quire.kernels.cpu.linear import CpuLinear
from quire.kernels.cpu.moe import CpuExperts
from quire.kernels.cpu.native import native
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.matrices.lattice_matrix import LatticeMatrix
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.kernels.matrices.rotation import hartley_matrix, rotate
from quire.kernels.reference.linear import ReferenceLinear
from tests.kernels.conftest import ALL_ISAS
from tests.kernels.lattice_cases import random_lattice
from tests.kernels.quantized_cases import simulate

ISAS = ALL_ISAS
pytestmark = pytest.mark.kernels("pack_lattice", "linear_quantized", "lookup_quantized")
#: (outputs, inputs, stages): one run and many, part records, part panels, bases on either side.
SHAPES = [(1, 8, 1), (32, 256, 1), (40, 24, 2), (33, 704, 1), (96, 576, 2), (7, 1024, 2)]


def identity(matrix: LatticeMatrix) -> LatticeMatrix:
    """Return a matrix whose rotations are known to be exact: powers of four of whole numbers."""
    rows, columns = matrix.shape
    assert {rows, columns} <= {1, 4, 16, 64, 256, 1024}
    ones = np.ones((1, 1), np.float32)
    return replace(matrix, input_matrix=ones, output_matrix=ones)


@pytest.mark.parametrize(("rows", "columns", "stages"), SHAPES)
def test_exact_activations_equal_dequantize_then_multiply(
    isa: str, rows: int, columns: int, stages: int
) -> None:
    matrix = random_lattice(rows, columns, stages)
    x = np.random.default_rng(1).standard_normal((9, columns), np.float32)
    want = x.astype(np.float64) @ matrix.float32().astype(np.float64).T
    got = CpuLinear([matrix], [], "float32", exact_activations=True)(x)
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("stages", [1, 2])
def test_whole_numbers_lose_nothing(isa: str, stages: int) -> None:
    """All sums are of whole numbers, so rotations and products are exact: equal on every set."""
    matrix = replace(
        identity(random_lattice(64, 256, stages)),
        row_scales=np.ones(64, np.float32),
        stage_scales=np.array([1, 0.25][:stages], np.float32),
    )
    x = np.random.default_rng(2).integers(-40, 41, (5, 256)).astype(np.float32)
    want = x.astype(np.float64) @ matrix.float32().astype(np.float64).T
    got = CpuLinear([matrix], [], "float32", exact_activations=True)(x)
    np.testing.assert_array_equal(got, want.astype(np.float32))


def test_every_code_is_multiplied_exactly(isa: str) -> None:
    """Rotated inputs that are whole and at most 127, in each 32 of them: rounding changes none."""
    codes = np.random.default_rng(6).permutation(np.arange(1 << 17, dtype=np.uint32))
    matrix = replace(
        identity(random_lattice(1024, 1024)),
        codes=codes.astype(np.uint16).reshape(1, 1024, 128),
        row_scales=np.ones(1024, np.float32),
    )
    turned = np.random.default_rng(7).integers(-126, 127, (40, 1024)).astype(np.float32)
    turned[:, ::32] = 127
    x = rotate(turned, np.ones((1, 1), np.float32)) * matrix.input_factors
    want = x.astype(np.float64) @ matrix.float32().astype(np.float64).T
    layer = CpuLinear([matrix], [], "float32")
    for count in (1, 2, 4, 40):
        np.testing.assert_array_equal(layer(x[:count]), want[:count])


@pytest.mark.parametrize(("rows", "columns", "stages"), SHAPES)
def test_rounded_activations_are_those_of_rotated_inputs(
    isa: str, rows: int, columns: int, stages: int
) -> None:
    """What is rounded is what the rotation made, and nothing else is rounded."""
    matrix = random_lattice(rows, columns, stages)
    x = np.random.default_rng(3).standard_normal((6, columns), np.float32)
    turned = rotate(x * matrix.input_factors, matrix.input_matrix.T)
    inner = np.zeros((len(x), rows), np.float32)
    for codes, scale in zip(matrix.codes, matrix.stage_scales, strict=True):
        stage = replace(matrix, codes=codes[None], stage_scales=np.array([scale], np.float32))
        inner += simulate(as_quantized(stage), turned, fused=False)
    want = rotate(inner, matrix.output_matrix) * matrix.output_factors
    got = CpuLinear([matrix], [], "float32")(x)
    exact = x @ matrix.float32().T
    # An activation on the border of two codes may take the other one.
    rounding = np.abs(want - exact).max()
    assert np.abs(got - want).max() <= 0.1 * rounding + 1e-6 * np.abs(want).max()


def as_quantized(matrix: LatticeMatrix) -> QuantizedTensor:
    """Return a matrix of one stage before its rotations as codes that are no vectors."""
    rows, columns = matrix.shape
    scales = matrix.row_scales * matrix.stage_scales[0] / 4
    quarters = np.rint(matrix.rotated() / scales[:, None]).astype(np.int16)
    return QuantizedTensor(
        "w",
        5,
        matrix.form.group_size,
        (quarters + 16).astype(np.uint8),
        scales.astype(np.float32)[:, None],
        zero=16,
    )


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("rows", "columns", "stages"), [(230, 576, 1), (96, 704, 2)])
def test_a_rows_bits_depend_on_that_row_alone(
    isa: str, exact: bool, rows: int, columns: int, stages: int
) -> None:
    layer = CpuLinear([random_lattice(rows, columns, stages)], [], "float32", exact)
    x = np.random.default_rng(3).standard_normal((300, columns), np.float32)
    before = native.num_threads()
    native.set_num_threads(1)
    alone = np.concatenate([layer(x[i : i + 1]) for i in range(33)])
    for threads in (1, 2):
        native.set_num_threads(threads)
        for count in (2, 3, 7, 8, 9, 17, 32, 33):
            np.testing.assert_array_equal(layer(x[:count]), alone[:count])
        np.testing.assert_array_equal(layer(x)[:33], alone)
    native.set_num_threads(before)


def test_matrices_lie_side_by_side_with_their_biases(isa: str) -> None:
    parts = [random_lattice(rows, 96, seed=rows) for rows in (40, 3, 64)]
    random = np.random.default_rng(4)
    biases = [
        HostTensor("b", "float32", random.standard_normal(len(part.row_scales), np.float32))
        for part in parts
    ]
    x = random.standard_normal((5, 96), np.float32)
    layer = CpuLinear(parts, biases, "float32", exact_activations=True)
    want = np.concatenate(
        [x @ part.float32().T + bias.array for part, bias in zip(parts, biases, strict=True)], 1
    )
    assert np.abs(layer(x) - want).max() <= 1e-5 * np.abs(want).max()
    theirs = ReferenceLinear(parts, biases, "float32")(torch.from_numpy(x)).numpy()
    assert np.abs(layer(x) - theirs).max() <= 1e-5 * np.abs(want).max()
    assert len(layer.packed) == 3


@pytest.mark.parametrize("stages", [1, 2])
def test_packed_weights_are_used_again_where_they_lie(stages: int) -> None:
    matrix = random_lattice(33, 704, stages)
    layer = CpuLinear([matrix], [], "float32")
    assert layer.nbytes == matrix.form.matrix_bytes(33, 704)
    (packed,) = layer.packed
    x = np.random.default_rng(5).standard_normal((3, 704), np.float32)
    np.testing.assert_array_equal(CpuLinear([packed], [], "float32")(x), layer(x))


def test_tables_and_experts_are_refused() -> None:
    matrix = random_lattice(64, 32)
    with pytest.raises(UnsupportedInputError, match="a table must not be rotated; got w"):
        CpuLinear([matrix], [], "float32").lookup(np.zeros(1, np.int32))
    down = random_lattice(32, 32)
    with pytest.raises(UnsupportedInputError, match="experts.* must not be rotated; got w"):
        CpuExperts([[matrix]], [[down]], "silu")


@pytest.mark.parametrize(
    "changes",
    [
        {"columns": 36},
        {"group_size": 64},
        {"stages": 0},
        {"stages": 3},
        {"input_base": 3},
        {"output_base": 0},
        {"bits": 8},
        {"has_code_sums": True},
    ],
)
def test_other_layouts_are_refused_before_memory_is_touched(changes: dict[str, Any]) -> None:
    good = {
        "group_size": 32, "bits": 5, "zero": 16, "vectors": 8,
        "stages": 1, "input_base": 1, "output_base": 1,
    }  # fmt: skip
    native.PackedQuantizedWeights(32, 64, good, False, None)
    layout = good | changes
    columns = layout.pop("columns", 32)
    with pytest.raises(ValueError, match="no such"):
        native.PackedQuantizedWeights(columns, 64, layout, False, None)


def test_hartley_matrices_are_their_own_inverse() -> None:
    matrix = hartley_matrix(11)
    np.testing.assert_allclose(matrix @ matrix, np.eye(11), atol=1e-6)
