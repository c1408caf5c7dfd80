"""Inputs rounded as checkpoints say: rules by their authors' libraries, products bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from quire.core.errors import UnsupportedInputError
from quire.kernels.cpu.linear import CpuLinear
from quire.kernels.cpu.native import native
from quire.kernels.matrices.activation_scheme import ActivationScheme, round_rows, round_to_e4m3
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.matrices.quantized_tensor import QuantizedTensor, padded
from quire.kernels.matrices.small_floats import E4M3
from quire.kernels.reference.linear import ReferenceLinear
from tests.kernels.conftest import ALL_ISAS
from tests.kernels.quantized_cases import (
    other_quantized,
    random_quantized,
    simulate,
    simulate_whole_rows,
)

ISAS = ALL_ISAS
pytestmark = pytest.mark.kernels("pack_quantized", "linear_quantized", "lookup_quantized")
#: (in_features, out_features), with tails of everything; several blocks of inputs.
SHAPES = [(7, 1), (32, 31), (40, 33), (1100, 70)]
FIXTURE = Path(__file__).parents[1] / "fixtures" / "quantized" / "rounded-inputs.safetensors"


def stored(scale: float) -> float:
    return float(np.float32(scale))


#: By the fixture's names.
LIBRARY_RULES = {
    "int8-token": ActivationScheme("int8"),
    "int8-token-zeros": ActivationScheme("int8", has_zeros=True),
    "int8-tensor": ActivationScheme("int8", scale=stored(0.03)),
    "int8-tensor-zeros": ActivationScheme("int8", scale=stored(0.02), zero=-37, has_zeros=True),
    "e4m3-token": ActivationScheme("e4m3"),
    "e4m3-tensor": ActivationScheme("e4m3", scale=stored(0.003)),
    "e4m3-group-32": ActivationScheme("e4m3", 32),
    "e4m3-powers": ActivationScheme("e4m3", 32, has_power_factors=True),
    "e2m1-powers": ActivationScheme("e2m1", 32, has_power_factors=True),
    "e2m1-groups": ActivationScheme("e2m1", 16, scale=70.0),
}
OUTLIERS = ActivationScheme("outliers", threshold=2.0)
BYTE_RULES = {
    **{name: rule for name, rule in LIBRARY_RULES.items() if rule.codes == "int8"},
    "outliers": OUTLIERS,
    "no outliers": ActivationScheme("outliers", threshold=float("inf")),
}
FOUR_BIT_RULES = {
    "e2m1-powers": ("e8m0", LIBRARY_RULES["e2m1-powers"]),
    "e2m1-groups": ("e4m3 over", LIBRARY_RULES["e2m1-groups"]),
    "modelopt's": ("e4m3", LIBRARY_RULES["e2m1-groups"]),
}
FLOAT_RULES = {name: rule for name, rule in LIBRARY_RULES.items() if rule.codes == "e4m3"}


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def rows_of_all_sizes(count: int, width: int) -> np.ndarray:
    """Return rows from tiny to large, zeros, all extremes and no negatives among them."""
    x = normal(count, width) * np.float32([[10.0**e] for e in np.linspace(-7, 4, count)])
    x[3] = 0
    x[4] = np.float32(-3)
    x[5] = np.abs(x[5])
    return x


def bytes_of_rows(rows: int, columns: int, scheme: ActivationScheme, seed: int = 0):
    made = random_quantized(rows, columns, 8, padded(columns), False, False, seed)
    return replace(made, activations=scheme)


def e4m3_weights(rows: int, columns: int, scheme: ActivationScheme) -> QuantizedTensor:
    return replace(other_quantized("E4M3", rows, columns), activations=scheme)


@pytest.mark.parametrize("name", LIBRARY_RULES)
def test_rows_are_those_of_compressed_tensors(name: str) -> None:
    tensors = load_file(FIXTURE)
    got = round_rows(LIBRARY_RULES[name], tensors["x"]).float32()
    np.testing.assert_array_equal(got, tensors[name])


def test_outliers_and_codes_are_those_of_bitsandbytes() -> None:
    tensors = load_file(FIXTURE)
    x = tensors["x"]
    got = round_rows(ActivationScheme("outliers", threshold=6.0), x)
    np.testing.assert_array_equal(got.codes, tensors["outliers-codes"])
    np.testing.assert_array_equal(got.factors[:, 0] * 127, tensors["outliers-largest"])
    np.testing.assert_array_equal(got.outliers, np.where(np.abs(x) >= 6, x, 0))
    assert (got.outliers != 0).any(axis=1).sum() >= 3


def test_e4m3_by_its_codes() -> None:
    """Every number stays, what lies between goes to the nearer, and ties to the even code."""
    numbers = np.sort(E4M3[:127])
    np.testing.assert_array_equal(round_to_e4m3(numbers), numbers)
    middle = (numbers[1:] + numbers[:-1]) / 2
    even = np.where(np.arange(126) % 2 == 0, numbers[:-1], numbers[1:])
    np.testing.assert_array_equal(round_to_e4m3(middle), even)
    above = np.nextafter(middle, np.float32(np.inf))
    np.testing.assert_array_equal(round_to_e4m3(-above), -numbers[1:])
    assert round_to_e4m3(np.float32([1e9, -449])).tolist() == [448, -448]


@pytest.mark.parametrize("rule", BYTE_RULES)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_whole_rows_equal_their_simulation(isa: str, rule: str, inputs: int, outputs: int) -> None:
    weight = bytes_of_rows(outputs, inputs, BYTE_RULES[rule])
    x = rows_of_all_sizes(19, inputs)
    layer = CpuLinear([weight], [], "float32")
    want = simulate_whole_rows(weight, x, fused=isa != "scalar")
    np.testing.assert_array_equal(layer(x), want)
    np.testing.assert_array_equal(layer(x[:2]), want[:2])
    assert layer.nbytes == weight.form.matrix_bytes(outputs, inputs)


@pytest.mark.parametrize("rule", ["int8-token", "int8-tensor"])
@pytest.mark.parametrize(
    "kind", [(4, 32, False, False), (4, 128, False, False), (3, 64, True, False)]
)
def test_groups_of_few_bits_equal_their_simulation(
    isa: str, rule: str, kind: tuple[int, int, bool, bool]
) -> None:
    weight = replace(random_quantized(70, 530, *kind), activations=BYTE_RULES[rule])
    x = rows_of_all_sizes(9, 530)
    got = CpuLinear([weight], [], "float32")(x)
    np.testing.assert_array_equal(got, simulate(weight, x, fused=isa != "scalar"))


@pytest.mark.parametrize("name", FOUR_BIT_RULES)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_e2m1_products_equal_their_simulation(
    isa: str, name: str, inputs: int, outputs: int
) -> None:
    kind, scheme = FOUR_BIT_RULES[name]
    weight = replace(other_quantized(kind, outputs, inputs), activations=scheme)
    x = rows_of_all_sizes(19, inputs)
    got = CpuLinear([weight], [], "float32")(x)
    np.testing.assert_array_equal(got, simulate(weight, x, fused=isa != "scalar"))


def products(weight: QuantizedTensor, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what float64 makes of the rounded rows, and how large each product's terms are."""
    assert weight.activations is not None
    rows = round_rows(weight.activations, x).float32().astype(np.float64)
    values = weight.float32().astype(np.float64).T
    return rows @ values, np.abs(rows) @ np.abs(values)


@pytest.mark.parametrize("rule", FLOAT_RULES)
def test_e4m3_products_are_those_of_rounded_rows(isa: str, rule: str) -> None:
    weight = e4m3_weights(70, 530, FLOAT_RULES[rule])
    x = rows_of_all_sizes(19, 530)
    want, terms = products(weight, x)
    layer = CpuLinear([weight], [], "float32")
    for rows in (1, 19):
        assert (np.abs(layer(x[:rows]) - want[:rows]) <= 1e-5 * terms[:rows] + 1e-30).all()
    # A unit vector picks one value: E4M3 keeps 448 of 448, a stored scale its own grid.
    unit = np.eye(530, dtype=np.float32)[[0, 31, 529]]
    expected = (
        weight.float32().T[[0, 31, 529]] * round_rows(FLOAT_RULES[rule], unit).float32().max()
    )
    np.testing.assert_allclose(layer(unit), expected, rtol=1e-6)


@pytest.mark.parametrize("kind", [(8, 64, False, False), (4, 32, False, False)])
def test_zeros_without_sums_are_multiplied_as_floats(
    isa: str, kind: tuple[int, int, bool, bool]
) -> None:
    weight = replace(random_quantized(70, 530, *kind), activations=BYTE_RULES["int8-token-zeros"])
    x = rows_of_all_sizes(9, 530)
    want, terms = products(weight, x)
    assert (np.abs(CpuLinear([weight], [], "float32")(x) - want) <= 1e-5 * terms + 1e-30).all()


#: Integers of which E4M3 inputs make products of floats.
INTEGERS = {
    "4 bits": random_quantized(70, 530, 4, 128, False, False),
    "3 bits with offsets": random_quantized(70, 530, 3, 192, True, False),
    "bytes of rows": random_quantized(70, 530, 8, padded(530), False, False),
    "byte zeros": other_quantized("byte zeros", 70, 530),
    "ordered inputs": other_quantized("ordered inputs", 70, 530),
}


@pytest.mark.parametrize("rule", FLOAT_RULES)
@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_take_e4m3_inputs(isa: str, kind: str, rule: str) -> None:
    """By row, by groups of 32 whatever the weights' groups are, or by a stored scale."""
    weight = replace(INTEGERS[kind], activations=FLOAT_RULES[rule])
    x = rows_of_all_sizes(19, 530)
    want, terms = products(weight, x)
    layer = CpuLinear([weight], [], "float32")
    got = layer(x)
    assert (np.abs(got - want) <= 1e-5 * terms + 1e-30).all()
    for row in range(19):
        np.testing.assert_array_equal(layer(x[row : row + 1])[0], got[row])
    theirs = ReferenceLinear([weight], [], "float32", exact_activations=False)
    assert (np.abs(theirs(torch.from_numpy(x)).numpy() - want) <= 1e-5 * terms + 1e-30).all()


def layer_of(rule: str, rows: int, columns: int) -> CpuLinear:
    """Return a product of a rule of any kind."""
    if rule in FOUR_BIT_RULES:
        kind, scheme = FOUR_BIT_RULES[rule]
        weight = replace(other_quantized(kind, rows, columns), activations=scheme)
    elif rule in BYTE_RULES:
        weight = bytes_of_rows(rows, columns, BYTE_RULES[rule])
    else:
        weight = e4m3_weights(rows, columns, FLOAT_RULES[rule])
    return CpuLinear([weight], [], "float32")


@pytest.mark.parametrize("rule", [*BYTE_RULES, *FLOAT_RULES, *FOUR_BIT_RULES])
def test_a_rows_bits_depend_on_that_row_alone(isa: str, rule: str) -> None:
    layer = layer_of(rule, 230, 600)
    x = normal(300, 600, seed=2)
    before = native.num_threads()
    native.set_num_threads(1)
    alone = np.concatenate([layer(x[i : i + 1]) for i in range(49)])
    for threads in (1, 2):
        native.set_num_threads(threads)
        for rows in (2, 5, 7, 17, 33, 49):
            np.testing.assert_array_equal(layer(x[:rows]), alone[:rows])
        np.testing.assert_array_equal(layer(x)[:49], alone)
        np.testing.assert_array_equal(layer(x[::-1].copy())[-49:][::-1], alone)
    native.set_num_threads(before)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "rule", ["int8-token", "int8-tensor-zeros", "outliers", "e4m3-tensor", *FOUR_BIT_RULES]
)
def test_a_value_that_is_no_number_spoils_its_row_only(isa: str, rule: str, value: float) -> None:
    layer = layer_of(rule, 40, 64)
    x = normal(3, 64)
    clean = layer(x)
    x[1, 40] = value
    got = layer(x)
    assert np.isnan(got[1]).all()
    np.testing.assert_array_equal(got[[0, 2]], clean[[0, 2]])


def test_the_largest_sums_fit(isa: str) -> None:
    """Bytes of -128 on both sides, next to each other: 16 bits do not hold two such products."""
    scheme = ActivationScheme("int8", scale=1.0)
    weight = bytes_of_rows(33, 8192, scheme)
    weight = replace(weight, codes=np.zeros_like(weight.codes), scales=np.ones((33, 1), np.float32))
    got = CpuLinear([weight], [], "float32")(np.full((2, 8192), -500, np.float32))
    np.testing.assert_array_equal(got, np.full((2, 33), 128 * 128 * 8192, np.float32))


def test_bias_and_parts_with_scales_of_their_own(isa: str) -> None:
    parts = [
        bytes_of_rows(40, 96, ActivationScheme("int8", scale=0.03)),
        bytes_of_rows(17, 96, ActivationScheme("int8", scale=0.05), seed=1),
        HostTensor("f", "float32", normal(9, 96)),
    ]
    bias = normal(66, seed=3)
    layer = CpuLinear(parts, [HostTensor("b", "float32", bias)], "float32")
    assert len(layer.matrices) == 3
    x = normal(5, 96, seed=4)
    theirs = ReferenceLinear(
        parts, [HostTensor("b", "float32", bias)], "float32", exact_activations=False
    )
    np.testing.assert_allclose(layer(x), theirs(torch.from_numpy(x)).numpy(), rtol=0, atol=2e-4)


def test_exact_activations_are_not_rounded(isa: str) -> None:
    weight = bytes_of_rows(40, 96, BYTE_RULES["int8-token-zeros"])
    x = normal(5, 96)
    want = x.astype(np.float64) @ weight.float32().astype(np.float64).T
    for layer in (
        CpuLinear([weight], [], "float32", exact_activations=True),
        lambda x: ReferenceLinear([weight], [], "float32")(torch.from_numpy(x)).numpy(),
    ):
        assert np.abs(layer(x) - want).max() <= 1e-5 * np.abs(want).max()
    got = CpuLinear([weight], [], "float32", True).lookup(np.int32([39, 0]))
    np.testing.assert_array_equal(got, weight.float32()[[39, 0]])


def with_outlier_channels(width: int, times: float) -> np.ndarray:
    """Return 64 rows of N(0, 1), four channels of which are ``times`` as large."""
    x = normal(64, width, seed=5)
    x[:, :: width // 4] *= np.float32(times)
    return x


def relative_error(scheme: ActivationScheme, x: np.ndarray, width: int) -> float:
    """Return the error of a product with int8 weights of N(0, 1), of the floats' size."""
    weight = normal(128, width, seed=6)
    scales = np.abs(weight).max(axis=1, keepdims=True) / np.float32(127)
    codes = (np.rint(weight / scales) + 128).astype(np.uint8)
    held = QuantizedTensor("w", 8, padded(width), codes, scales, zero=128, activations=scheme)
    want = x.astype(np.float64) @ held.float32().astype(np.float64).T
    got = CpuLinear([held], [], "float32")(x)
    return float(np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)))


def test_outlier_channels_cost_a_tenth_of_plain_bytes(isa: str) -> None:
    """Channels 20 times as large: kept as they are, the rest of a row has a fine scale."""
    width = 1024
    x = with_outlier_channels(width, 20)
    plain = relative_error(ActivationScheme("int8", scale=float(np.abs(x).max() / 127.5)), x, width)
    by_row = relative_error(ActivationScheme("int8"), x, width)
    mixed = relative_error(ActivationScheme("outliers", threshold=6.0), x, width)
    assert mixed < by_row < plain
    assert mixed <= plain / 10
    never = relative_error(ActivationScheme("outliers", threshold=float("inf")), x, width)
    assert never == pytest.approx(by_row, rel=0.05)


def test_floats_next_to_bytes_under_one_scale() -> None:
    """A column of outliers spoils whole numbers, not floats; without it bytes are better."""
    usual = np.arange(256) != 3
    ratios = {}
    for factor in (1, 20):
        x = normal(64, 256)
        x[:, 3] *= factor
        largest = float(np.abs(x).max())
        floats, integers = (
            np.square(round_rows(rule, x).float32() - x)[:, usual].mean()
            for rule in (
                ActivationScheme("e4m3", scale=largest / 448),
                ActivationScheme("int8", scale=largest / 127.5),
            )
        )
        ratios[factor] = floats / integers
    assert ratios[20] <= 0.1 and ratios[1] > 5, ratios


def test_rules_that_do_not_fit_are_refused() -> None:
    good = bytes_of_rows(4, 64, OUTLIERS)
    bad = [
        {"activations": ActivationScheme("e2m1", 32)},
        {"float_codes": True, "zero": 0, "activations": ActivationScheme("int8")},
        {"group_size": 32, "scales": np.ones((4, 2), np.float16)},
        {"input_order": np.arange(64, dtype=np.int32)[::-1].copy()},
    ]
    for change in bad:
        with pytest.raises(UnsupportedInputError, match="quantized w"):
            replace(good, **change)
    with pytest.raises(UnsupportedInputError, match="at most 65536"):
        bytes_of_rows(1, 65568, ActivationScheme("int8"))
