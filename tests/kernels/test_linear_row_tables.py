"""Linears whose codes are looked up in a table of their row, with outliers and without."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from quire.core.errors import UnsupportedInputError
from quire.evaluation.formats.held_bits import held_bits
from quire.kernels.cpu.linear import CpuLinear
from quire.kernels.cpu.native import native
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.kernels.matrices.row_tables import Outliers, join_outliers
from quire.kernels.reference.linear import ReferenceLinear
from tests.kernels.quantized_cases import simulate, tables_quantized

pytestmark = pytest.mark.kernels("pack_quantized", "linear_quantized", "lookup_quantized")

KINDS = [(bits, dtype, outliers) for bits in (3, 4) for dtype in (np.float16, np.float32)
         for outliers in ("", "few", "rows")]  # fmt: skip
#: (in_features, out_features): one record, tails of parts and panels, more than a block.
SHAPES = [(32, 1), (64, 31), (96, 41), (1120, 70)]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_the_integer_path_equals_its_simulation(
    isa: str, kind: tuple[int, type, str], inputs: int, outputs: int
) -> None:
    weight = tables_quantized(outputs, inputs, *kind)
    x = normal(14, inputs) * np.float32([[10.0**e] for e in range(-7, 7)])
    want = simulate(weight, x, fused=isa != "scalar")
    np.testing.assert_array_equal(CpuLinear([weight])(x), want)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_exact_activations_meet_the_values_themselves(
    isa: str, kind: tuple[int, type, str], inputs: int, outputs: int
) -> None:
    weight = tables_quantized(outputs, inputs, *kind)
    values, bias = weight.float32(), normal(outputs, seed=3)
    layer = CpuLinear([weight], [HostTensor("b", "float32", bias)], exact_activations=True)
    x = normal(23, inputs)
    want = x.astype(np.float64) @ values.astype(np.float64).T + bias
    size = np.abs(x.astype(np.float64)) @ np.abs(values.astype(np.float64)).T
    for rows in (1, 2, 5, 23):
        assert (np.abs(layer(x[:rows]) - want[:rows]) <= 2e-6 * size[:rows]).all()
    # A unit vector picks one value of each output: no sum rounds it.
    if not kind[2]:
        places = [0, 1, inputs // 2, inputs - 1]
        exact = CpuLinear([weight], exact_activations=True)
        got = exact(np.eye(inputs, dtype=np.float32)[places])
        np.testing.assert_array_equal(got, values.T[places])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_lookup_returns_the_values(isa: str, kind: tuple[int, type, str]) -> None:
    weight = tables_quantized(70, 96, *kind)
    ids = np.array([69, 0, 31, 32, 33, 69, 5], np.int32)
    np.testing.assert_array_equal(CpuLinear([weight]).lookup(ids), weight.float32()[ids])
    theirs = ReferenceLinear([weight]).lookup(torch.from_numpy(ids))
    np.testing.assert_array_equal(theirs.numpy(), weight.float32()[ids])


@pytest.mark.parametrize("outliers", ["", "few"])
def test_silent_rows_and_large_ones(isa: str, outliers: str) -> None:
    weight = tables_quantized(40, 96, 4, np.float32, outliers)
    assert weight.tables is not None
    weight.tables[3] = 0
    weight.tables[4] *= np.float32(1e30)
    weight.tables[5] *= np.float32(1e-35)
    x = normal(3, 96)
    got, want = CpuLinear([weight])(x), x @ weight.float32().T
    size = np.abs(x) @ np.abs(weight.float32()).T
    assert (np.abs(got - want) <= 0.02 * size + 1e-30).all()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kind", KINDS[1:], ids=str)
def test_a_rows_bits_depend_on_that_row_alone(
    isa: str, kind: tuple[int, type, str], exact: bool
) -> None:
    inputs, outputs, most = 1120, 230, 300
    layer = CpuLinear([tables_quantized(outputs, inputs, *kind)], exact_activations=exact)
    x = normal(most, inputs, seed=2)
    before = native.num_threads()
    native.set_num_threads(1)
    alone = np.concatenate([layer(x[i : i + 1]) for i in range(19)])
    for threads in (1, 2):
        native.set_num_threads(threads)
        for rows in (*range(2, 9), 13, 19):
            np.testing.assert_array_equal(layer(x[:rows]), alone[:rows])
            np.testing.assert_array_equal(layer(x[19 - rows : 19]), alone[19 - rows :])
        np.testing.assert_array_equal(layer(x)[:19], alone)
    native.set_num_threads(before)


@pytest.mark.parametrize("outliers", ["", "few"])
def test_matrices_of_one_kind_are_one_product(isa: str, outliers: str) -> None:
    parts = [
        tables_quantized(rows, 96, 4, np.float16, outliers, seed)
        for seed, rows in enumerate((40, 17, 33))
    ]
    parts += [tables_quantized(9, 96, 3, np.float16, outliers)]
    layer = CpuLinear(parts, exact_activations=True)
    assert len(layer.matrices) == 2
    x = normal(5, 96, seed=4)
    want = x.astype(np.float64) @ np.concatenate([part.float32() for part in parts]).T
    np.testing.assert_allclose(layer(x), want, rtol=0, atol=1e-5 * np.abs(want).max())
    # What was packed is taken up again as it is.
    again = CpuLinear(layer.packed, exact_activations=True)
    np.testing.assert_array_equal(again(x), layer(x))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_memory_is_that_of_the_formula(isa: str, kind: tuple[int, type, str]) -> None:
    weight = tables_quantized(256, 704, *kind)
    layer = CpuLinear([weight])
    assert layer.nbytes == weight.form.matrix_bytes(256, 704)
    bits = held_bits(layer.packed)
    assert bits is not None and abs(bits.held / bits.formula - 1) < 1e-3


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_no_number_spoils_its_row_only(isa: str, value: float) -> None:
    layer = CpuLinear([tables_quantized(40, 64, 4, np.float16, "few")])
    x = normal(9, 64)
    clean = layer(x)
    x[1, 40] = value
    got = layer(x)
    assert not np.isfinite(got[1]).any()
    np.testing.assert_array_equal(got[[0, *range(2, 9)]], clean[[0, *range(2, 9)]])


def test_rows_of_outliers_are_joined() -> None:
    whole = tables_quantized(8, 64, 4, np.float16, "few").outliers
    assert whole is not None
    ends = whole.starts[3], whole.starts[8]
    parts = [
        Outliers(whole.starts[:4], whole.columns[: ends[0]], whole.values[: ends[0]]),
        Outliers(whole.starts[3:] - ends[0], whole.columns[ends[0] :], whole.values[ends[0] :]),
    ]
    joined = join_outliers(parts)
    for name in ("starts", "columns", "values"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))


def test_parts_that_do_not_fit_are_refused() -> None:
    good = tables_quantized(4, 64, 4, np.float16, "few")
    assert good.outliers is not None and good.tables is not None
    nan = good.tables.copy()
    nan[1, 2] = np.nan
    sparse = good.outliers
    bad = {
        "tables must be": {"tables": good.tables[:3]},
        "tables must be finite": {"tables": nan},
        "bits must be 3 or 4": {"bits": 5},
        "columns must be a multiple of 32": {"codes": good.codes[:, :60]},
        "codes must be below 16": {"codes": good.codes + np.uint8(16)},
        "must come without scales": {"scales": np.ones((4, 2), np.float16)},
        "must be alone": {"input_order": np.arange(64, dtype=np.int32)},
        "must come with tables": {"tables": None, "scales": np.ones((4, 1), np.float16)},
        "5 starts": {"outliers": replace(sparse, starts=sparse.starts[:-1])},
        "int32 starts": {"outliers": replace(sparse, columns=sparse.columns.astype(np.int64))},
        "must go up": {"outliers": replace(sparse, starts=sparse.starts[::-1].copy())},
        "columns of outliers": {"outliers": replace(sparse, columns=sparse.columns + 64)},
        "outliers must be finite": {"outliers": replace(sparse, values=sparse.values + np.inf)},
    }
    for message, change in bad.items():
        with pytest.raises(UnsupportedInputError, match=message):
            replace(good, **change)


def test_the_native_module_checks_what_memory_depends_on() -> None:
    layout = {"group_size": 64, "bits": 4, "scale_dtype": 1, "scale_form": 7, "num_outliers": 3}
    made = native.PackedQuantizedWeights(64, 4, layout, False, None)
    starts, columns = np.int32([0, 1, 1, 2, 3]), np.int32([0, 63, 5])
    values = np.float32([1, 2, 3])
    made.set_outliers((starts, columns, values), 0, 4, 0, 3)
    wrong = [
        ((starts, columns + 1, values), 0, 4, 0, 3),
        ((starts[::-1].copy(), columns, values), 0, 4, 0, 3),
        ((np.int32([0, 2, 1, 2, 3]), columns, values), 0, 4, 0, 3),
        ((starts, columns, values), 0, 4, 1, 3),
        ((starts, columns, values), 1, 4, 0, 3),
    ]
    for arguments in wrong:
        with pytest.raises(ValueError, match="outliers must be|rows must lie"):
            made.set_outliers(*arguments)
    bad_parts = {
        "bits": 5, "zero": 1, "scale_dtype": 2, "row_form": 1, "has_input_order": True,
        "num_outliers": -2,
    }  # fmt: skip
    for part, value in bad_parts.items():
        with pytest.raises(ValueError, match="no such quantized layout"):
            native.PackedQuantizedWeights(64, 4, layout | {part: value}, False, None)
    with pytest.raises(ValueError, match="no such part of a layout"):
        native.PackedQuantizedWeights(64, 4, layout | {"group": 1}, False, None)
    with pytest.raises(ValueError, match="multiple of 32"):
        native.PackedQuantizedWeights(80, 4, layout, False, None)


def test_a_form_says_what_it_is() -> None:
    weight: QuantizedTensor = tables_quantized(4, 64, 3, np.float16, "few")
    assert str(weight.form) == "3 bits, float16 tables of rows, outliers"
