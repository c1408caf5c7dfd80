"""Quantized linears: the integer path bit for bit, the exact one within float32's error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from quire.core.errors import UnsupportedInputError
from quire.kernels.cpu.linear import CpuLinear
from quire.kernels.cpu.native import native
from quire.kernels.matrices.activation_scheme import FINE
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.matrices.nested_scales import NestedScales
from quire.kernels.matrices.quantized_tensor import QuantizedTensor, integer_code_book
from quire.kernels.matrices.small_floats import E2M1
from quire.kernels.reference.linear import ReferenceLinear
from tests.kernels.conftest import ALL_ISAS
from tests.kernels.quantized_cases import (
    FORMATS,
    INTEGER_KINDS,
    OTHER_KINDS,
    activation_inputs,
    other_quantized,
    quantize_activations,
    random_quantized,
    simulate,
    simulate_float_codes,
)

ISAS = ALL_ISAS
pytestmark = pytest.mark.kernels("pack_quantized", "linear_quantized", "lookup_quantized")
#: (in_features, out_features): less than a group, tails of groups, records, panels and blocks.
SHAPES = [(7, 1), (32, 31), (40, 33), (530, 70)]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def form(bits: int) -> QuantizedTensor:
    return random_quantized(5, 64, bits, 32, False, False)


@pytest.mark.parametrize("kind", FORMATS, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_the_integer_path_equals_its_simulation(
    isa: str, kind: tuple[int, int, bool, bool], inputs: int, outputs: int
) -> None:
    weight = random_quantized(outputs, inputs, *kind)
    layer = CpuLinear([weight], [], "float32")
    x = normal(14, inputs) * np.float32([[10.0**e] for e in range(-7, 7)])
    x[3] = 0
    np.testing.assert_array_equal(layer(x), simulate(weight, x, fused=isa != "scalar"))


@pytest.mark.parametrize(
    ("bits", "group"), [(8, 32), (6, 32), (5, 32), (4, 32), (2, 32), (4, 128), (4, 1024), (2, 64)]
)
def test_the_largest_products_do_not_overflow(isa: str, bits: int, group: int) -> None:
    weight = random_quantized(2, 1024, bits, group, False, False)
    layer = CpuLinear([weight], [], "float32")
    x = np.float32([[1.0], [-1.0]]) * np.ones((1, 1024), np.float32)
    np.testing.assert_array_equal(layer(x), simulate(weight, x, fused=isa != "scalar"))


@pytest.mark.parametrize("kind", FORMATS, ids=str)
def test_exact_activations_equal_dequantize_then_multiply(
    isa: str, kind: tuple[int, int, bool, bool]
) -> None:
    weight = random_quantized(70, 530, *kind)
    layer = CpuLinear([weight], [], "float32", exact_activations=True)
    x = normal(9, 530, seed=1)
    want = x.astype(np.float64) @ weight.float32().astype(np.float64).T
    assert np.abs(layer(x) - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("kind", INTEGER_KINDS)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_other_kinds_equal_their_simulation(isa: str, kind: str, inputs: int, outputs: int) -> None:
    weight = other_quantized(kind, outputs, inputs)
    layer = CpuLinear([weight], [], "float32")
    x = normal(14, inputs)
    np.testing.assert_array_equal(layer(x), simulate(weight, x, fused=isa != "scalar"))
    assert layer.nbytes == weight.form.matrix_bytes(outputs, inputs)


def left_over(weight: QuantizedTensor, x: np.ndarray) -> np.ndarray:
    """Return what x is without what its codes stand for, in the order of inputs."""
    order = np.arange(x.shape[1]) if weight.input_order is None else weight.input_order
    ordered, size = x[:, order], activation_inputs(weight)
    codes, scales = quantize_activations(ordered, size)
    values = codes.astype(np.float32) * np.repeat(scales, size, axis=1)
    rest = np.empty_like(x)
    rest[:, order] = ordered - values[:, : x.shape[1]]
    return rest


@pytest.mark.parametrize("kind", [*FORMATS, *INTEGER_KINDS], ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), [(7, 1), (530, 70)])
def test_inputs_of_16_bits_are_two_of_8_bits(
    isa: str, kind: tuple[int, int, bool, bool] | str, inputs: int, outputs: int
) -> None:
    """Small models lost answers to 8 bits, and kept them in float32 at twice the time."""
    make = other_quantized if isinstance(kind, str) else random_quantized
    arguments = (kind, outputs, inputs) if isinstance(kind, str) else (outputs, inputs, *kind)
    weight = make(*arguments)
    layer = CpuLinear([replace(weight, activations=FINE)], [], "float32")
    x = normal(140, inputs) * np.resize(np.float32([10.0**e for e in range(-7, 7)]), (140, 1))
    x[3] = 0
    got, fused = layer(x), isa != "scalar"
    want = simulate(weight, x, fused) + simulate(weight, left_over(weight, x), fused)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(layer(x[5:6]), got[5:6], "a row's bits are its own")
    exact = x.astype(np.float64) @ weight.float32().astype(np.float64).T
    rough = np.abs(CpuLinear([weight], [], "float32")(x) - exact)
    assert np.linalg.norm(got - exact) <= np.linalg.norm(rough) / 50


def float_codes(rows: int, columns: int, group_size: int, over_rows: bool) -> QuantizedTensor:
    """Make a matrix of all E4M3 codes that are numbers, each row in another order."""
    random = np.random.default_rng(5)
    every = np.delete(np.arange(256, dtype=np.uint8), [127, 255])
    codes = np.stack([random.permutation(every) for _ in range(rows)])
    return QuantizedTensor(
        name="w",
        bits=8,
        group_size=group_size,
        codes=np.ascontiguousarray(np.resize(codes.T, (columns, rows)).T),
        scales=random.uniform(0.001, 2, (rows, -(-columns // group_size))).astype(np.float32),
        row_scales=random.uniform(0.5, 9, rows).astype(np.float32) if over_rows else None,
        over_rows=over_rows,
        float_codes=True,
    )


@pytest.mark.parametrize("group", [32, 128, 192, 1312])
@pytest.mark.parametrize(("inputs", "outputs"), [(7, 1), (40, 33), (1300, 70)])
def test_e4m3_codes_are_multiplied_as_bfloat16_and_scaled(
    isa: str, group: int, inputs: int, outputs: int
) -> None:
    weight = float_codes(outputs, inputs, group, over_rows=group == 192)
    layer, x = CpuLinear([weight], [], "float32"), normal(40, inputs)
    block = 512 if isa.startswith(("amx", "avx512bf16")) else 128
    want = simulate_float_codes(weight, x, block, fused=isa != "scalar")
    for rows in (1, 2, 3, 5, 11, 12, 13, 24, 37, 40):
        np.testing.assert_array_equal(layer(x[:rows]), want[:rows])
    exact = x.astype(np.float64) @ weight.float32().astype(np.float64).T
    rounding = np.abs(x) @ np.abs(weight.float32()).T * np.float32(2.0**-8)  # of x to bfloat16
    assert (np.abs(want - exact) <= rounding).all()


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_other_kinds_are_dequantized_and_looked_up(isa: str, kind: str) -> None:
    weight = other_quantized(kind, 70, 530)
    values = weight.float32()
    layer = CpuLinear([weight], [], "float32", exact_activations=True)
    x = normal(9, 530, seed=1)
    want = x.astype(np.float64) @ values.astype(np.float64).T
    assert np.abs(layer(x) - want).max() <= 1e-5 * np.abs(want).max()
    # A unit vector picks one value of each output: no sum rounds it.
    unit = np.eye(530, dtype=np.float32)[[0, 31, 32, 500, 529]]
    np.testing.assert_array_equal(layer(unit), values.T[[0, 31, 32, 500, 529]])
    ids = np.array([69, 0, 31, 32, 33, 69, 5], np.int32)
    np.testing.assert_array_equal(layer.lookup(ids), values[ids])


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_rows_of_other_kinds_depend_on_themselves_alone(isa: str, kind: str) -> None:
    layer = CpuLinear([other_quantized(kind, 230, 600)], [], "float32")
    x = normal(60, 600, seed=2)
    alone = np.concatenate([layer(x[i : i + 1]) for i in range(60)])
    for rows in (2, 5, 17, 60):
        np.testing.assert_array_equal(layer(x[:rows]), alone[:rows])


def test_matrices_with_orders_of_their_own_are_one_product(isa: str) -> None:
    parts = [other_quantized("ordered inputs", 40, 96, seed) for seed in (0, 1)]
    parts.append(replace(parts[1], codes=parts[1].codes[::-1].copy()))
    layer = CpuLinear(parts, [], "float32", True)
    assert len(layer.matrices) == 2
    x = normal(3, 96)
    dense = np.concatenate([part.float32() for part in parts]).astype(np.float64)
    np.testing.assert_allclose(layer(x), x @ dense.T, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", FORMATS, ids=str)
def test_lookup_returns_the_values(isa: str, kind: tuple[int, int, bool, bool]) -> None:
    weight = random_quantized(70, 101, *kind)
    ids = np.array([69, 0, 31, 32, 33, 69, 5], np.int32)
    got = CpuLinear([weight], [], "float32").lookup(ids)
    np.testing.assert_array_equal(got, weight.float32()[ids])
    theirs = ReferenceLinear([weight], [], "float32").lookup(torch.from_numpy(ids))
    np.testing.assert_array_equal(got, theirs.numpy())


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kind", [FORMATS[0], FORMATS[2], FORMATS[5], FORMATS[-1]], ids=str)
def test_a_rows_bits_depend_on_that_row_alone(
    isa: str, kind: tuple[int, int, bool, bool], exact: bool
) -> None:
    inputs, outputs, most = 600, 230, 600
    layer = CpuLinear([random_quantized(outputs, inputs, *kind)], [], "float32", exact)
    x = normal(most, inputs, seed=2)
    before = native.num_threads()
    native.set_num_threads(1)
    alone = np.concatenate([layer(x[i : i + 1]) for i in range(49)])
    for threads in (1, 2):
        native.set_num_threads(threads)
        for rows in (*range(2, 15), 17, 19, 31, 48, 49):
            np.testing.assert_array_equal(layer(x[:rows]), alone[:rows])
            np.testing.assert_array_equal(layer(x[49 - rows : 49]), alone[49 - rows :])
        np.testing.assert_array_equal(layer(x)[:49], alone)
        np.testing.assert_array_equal(layer(x[::-1].copy())[-49:][::-1], alone)
    native.set_num_threads(before)


def test_matrices_held_in_different_ways_are_one_product(isa: str) -> None:
    parts = [
        random_quantized(40, 96, 4, 32, True, False),
        random_quantized(17, 96, 4, 32, True, False, seed=1),
        random_quantized(17, 96, 6, 16, False, False),
        HostTensor("f", "float32", normal(9, 96)),
    ]
    bias = normal(83, seed=3)
    layer = CpuLinear(parts, [HostTensor("b", "float32", bias)], "float32", True)
    x = normal(5, 96, seed=4)
    dense = np.concatenate([part.float32() for part in parts])
    want = x.astype(np.float64) @ dense.astype(np.float64).T + bias
    np.testing.assert_allclose(layer(x), want, rtol=0, atol=2e-5 * np.abs(want).max())
    with pytest.raises(UnsupportedInputError, match="held alike"):
        layer.lookup(np.array([0], np.int32))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_no_number_spoils_its_row_only(isa: str, value: float) -> None:
    layer = CpuLinear([form(8)], [], "float32")
    x = normal(3, 64)
    clean = layer(x)
    x[1, 40] = value
    got = layer(x)
    assert np.isnan(got[1]).all()
    np.testing.assert_array_equal(got[[0, 2]], clean[[0, 2]])


def test_memory_is_codes_and_scales(isa: str) -> None:
    """4 bits in groups of 128 take at most 4.16 bits a weight, 3% of them scales."""
    layer = CpuLinear([random_quantized(256, 2048, 4, 128, False, False)], [], "float32")
    assert layer.nbytes * 8 / (256 * 2048) == 4.125


def test_code_books_in_integers() -> None:
    whole, step = integer_code_book(np.float32([-127, 1, 113]))
    assert (whole.tolist(), step) == ([-127, 1, 113], 1.0)
    assert integer_code_book(E2M1)[0].tolist()[:8] == [0, 1, 2, 3, 4, 6, 8, 12]
    assert integer_code_book(E2M1)[1] == 0.5
    codes, step = integer_code_book(np.float32([-1, 0, 0.3, 1]))
    assert codes.tolist() == [-127, 0, 38, 127]
    assert step == pytest.approx(1 / 127)


def test_parts_that_do_not_fit_are_refused() -> None:
    codes, scales = np.zeros((4, 64), np.uint8), np.ones((4, 2), np.float16)
    good = {"name": "w", "bits": 4, "group_size": 32, "codes": codes, "scales": scales}
    assert QuantizedTensor(**good).shape == (4, 64)
    bad = [
        {"bits": 7},
        {"group_size": 48},
        {"codes": codes[:, :0]},
        {"scales": scales[:, :1]},
        {"scales": scales.astype(np.float64)},
        {"zero": 16},
        {"offsets": scales.astype(np.float32)},
        {"code_book": np.zeros(8, np.float32)},
    ]
    for change in bad:
        with pytest.raises(UnsupportedInputError, match="quantized w"):
            QuantizedTensor(**{**good, **change})


def test_matrices_with_nested_scales_of_their_own_are_one_product(isa: str) -> None:
    parts = [other_quantized("nested", rows, 96, seed) for seed, rows in enumerate((40, 7, 33))]
    layer = CpuLinear(parts, [], "float32")
    assert len(layer.matrices) == 1
    x = normal(3, 96)
    alone = [CpuLinear([part], [], "float32")(x) for part in parts]
    np.testing.assert_array_equal(layer(x), np.concatenate(alone, axis=1))


def test_nested_scales_take_a_tenth_of_the_numbers(isa: str) -> None:
    """4 bits in blocks of 64 with nested scales: 4 + 8 / 64 + 32 / 16,384 bits, and runs' offsets.

    A row's header takes 32 bits more, of 2,048 weights.
    """
    random = np.random.default_rng(0)
    nested = NestedScales(
        table=np.linspace(-1, 1, 256, dtype=np.float32),
        numbers=np.ones(256, np.float32),
        offset=1.0,
        run=256,
    )
    weight = QuantizedTensor(
        name="w",
        bits=4,
        group_size=64,
        codes=random.integers(0, 16, (2048, 2048), np.uint8),
        scales=random.integers(0, 256, (2048, 32), np.uint8),
        code_book=np.linspace(-1, 1, 16, dtype=np.float32),
        nested=nested,
    )
    bits = CpuLinear([weight], [], "float32").nbytes * 8 / 2048**2
    assert 4.127 <= bits <= 1.006 * 4.127


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_rows_in_another_order_have_their_values(kind: str) -> None:
    matrix, order = other_quantized(kind, 33, 128), np.random.default_rng(1).permutation(33)
    np.testing.assert_array_equal(matrix.with_rows(order).float32(), matrix.float32()[order])
