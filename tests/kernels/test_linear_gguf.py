"""Linears of GGUF's types, packed from their blocks, against the dequantizers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from quire.checkpoints.gguf.gguf_layouts import LAYOUTS
from quire.checkpoints.gguf.gguf_types import QUANTIZED, dequantize
from quire.kernels.cpu.linear import CpuLinear
from quire.kernels.cpu.native import native
from quire.kernels.matrices.vector_codes import VECTOR_CODES
from quire.kernels.reference.linear import ReferenceLinear
from tests.kernels.conftest import ALL_ISAS
from tests.kernels.quantized_cases import simulate
from tests.kernels.unpacked_blocks import unpack_rows
from tests.quantization.gguf_cases import random_matrix, rows_of_every_power

ISAS = ALL_ISAS
pytestmark = pytest.mark.kernels(
    "pack_gguf", "pack_gguf_vectors", "linear_quantized", "lookup_quantized"
)
#: (blocks of 256 inputs, outputs): part panels, and more than one.
SHAPES = [(1, 1), (2, 33), (3, 70)]


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize(("blocks", "outputs"), SHAPES)
def test_rows_of_the_packed_matrix_are_the_dequantizers(
    isa: str, name: str, blocks: int, outputs: int
) -> None:
    matrix = random_matrix(name, outputs, 256 * blocks)
    ids = np.arange(outputs, dtype=np.int32)[::-1].copy()
    want = dequantize(name, matrix.rows)[ids]
    got = CpuLinear([matrix], [], "float32").lookup(ids)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
    theirs = ReferenceLinear([matrix], [], "float32").lookup(torch.from_numpy(ids))
    np.testing.assert_array_equal(theirs.numpy(), want)


@pytest.mark.parametrize("name", [n for n in QUANTIZED if LAYOUTS[n].block_size == 32])
def test_rows_need_not_be_whole_spans(isa: str, name: str) -> None:
    matrix = random_matrix(name, 40, 256 + 96)
    got = CpuLinear([matrix], [], "float32").lookup(np.arange(40, dtype=np.int32))
    np.testing.assert_array_equal(got, dequantize(name, matrix.rows))


@pytest.mark.parametrize("name", QUANTIZED)
def test_the_integer_path_equals_its_simulation(isa: str, name: str) -> None:
    matrix = random_matrix(name, 45, 768)
    x = np.random.default_rng(1).standard_normal((9, 768), np.float32)
    want = simulate(unpack_rows(name, matrix.rows), x, fused=isa != "scalar")
    np.testing.assert_array_equal(CpuLinear([matrix], [], "float32")(x), want)


@pytest.mark.parametrize("name", VECTOR_CODES)
def test_every_vector_is_looked_up_with_every_sign(isa: str, name: str) -> None:
    """Blocks with each index of the table and each byte of signs among them."""
    matrix = random_matrix(name, 1024, 512, seed=5)
    x = np.random.default_rng(5).standard_normal((2, 512), np.float32)
    want = simulate(unpack_rows(name, matrix.rows), x, fused=isa != "scalar")
    np.testing.assert_array_equal(CpuLinear([matrix], [], "float32")(x), want)


@pytest.mark.parametrize("name", QUANTIZED)
def test_exact_activations_equal_dequantize_then_multiply(isa: str, name: str) -> None:
    matrix = random_matrix(name, 45, 512)
    x = np.random.default_rng(2).standard_normal((7, 512), np.float32)
    want = x.astype(np.float64) @ matrix.float32().astype(np.float64).T
    got = CpuLinear([matrix], [], "float32", exact_activations=True)(x)
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("name", QUANTIZED)
def test_matrices_stacked_inside_a_panel_keep_their_rows(name: str) -> None:
    parts = [random_matrix(name, rows, 512, seed) for seed, rows in enumerate((40, 3, 30))]
    layer = CpuLinear(parts, [], "float32")
    got = layer.lookup(np.arange(73, dtype=np.int32))
    want = np.concatenate([part.float32() for part in parts])
    np.testing.assert_array_equal(got, want)
    assert len(layer.packed) == 1


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        *("Q8_0", "Q4_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q6_K", "IQ4_XS", "IQ1_M", "IQ2_XXS"),
        *("IQ2_XS", "IQ3_S", "TQ1_0", "MXFP4"),
    ],
)
def test_a_rows_bits_depend_on_that_row_alone(isa: str, name: str, exact: bool) -> None:
    layer = CpuLinear([random_matrix(name, 230, 768)], [], "float32", exact)
    x = np.random.default_rng(3).standard_normal((300, 768), np.float32)
    before = native.num_threads()
    native.set_num_threads(1)
    alone = np.concatenate([layer(x[i : i + 1]) for i in range(49)])
    for threads in (1, 2):
        native.set_num_threads(threads)
        for rows in (*range(2, 11), 13, 17, 19, 31, 48, 49):
            np.testing.assert_array_equal(layer(x[:rows]), alone[:rows])
        np.testing.assert_array_equal(layer(x)[:49], alone)
    native.set_num_threads(before)


@pytest.mark.parametrize("name", QUANTIZED)
def test_memory_is_the_forms(name: str) -> None:
    """No byte beyond codes and scales: K-quants within 4% of the file, the others as they are."""
    matrix = random_matrix(name, 64, 2048)
    assert CpuLinear([matrix], [], "float32").nbytes == matrix.form.matrix_bytes(64, 2048)
    # Five codes of TQ1_0 share a byte; they are held as those of TQ2_0.
    stored = 64 * 2048 // 256 * 66 if name == "TQ1_0" else matrix.rows.nbytes
    assert matrix.form.matrix_bytes(64, 2048) <= 1.04 * stored


def test_every_scale_of_mxfp4_is_packed_as_it_is(isa: str) -> None:
    matrix = replace(random_matrix("MXFP4", 255, 128), rows=rows_of_every_power())
    got = CpuLinear([matrix], [], "float32").lookup(np.arange(255, dtype=np.int32))
    with np.errstate(over="ignore"):
        want = dequantize("MXFP4", matrix.rows)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


#: Of Q4_0: groups of 32, 4 bits, zero 8, float16, direct scales, and nothing else.
LAYOUT = {"group_size": 32, "bits": 4, "zero": 8, "scale_dtype": 1}


def test_blocks_of_another_type_are_not_packed() -> None:
    """The native side trusts no caller with its memory."""
    packed = native.PackedQuantizedWeights(256, 32, LAYOUT, False, None)
    rows = random_matrix("Q4_0", 32, 256).rows
    packed.pack_gguf(rows, 2, 0, 32)
    for code in (3, 12, 99):
        with pytest.raises(ValueError, match="layout must be that of the GGUF type"):
            packed.pack_gguf(rows, code, 0, 32)
    with pytest.raises(ValueError, match="at least"):
        packed.pack_gguf(rows[:31], 2, 0, 32)
    with pytest.raises(ValueError, match="inside the outputs"):
        packed.pack_gguf(rows, 2, 1, 32)


def test_vectors_need_their_blocks_and_table() -> None:
    layout = {
        "group_size": 16,
        "bits": 8,
        "zero": 128,
        "scale_dtype": 1,
        "scale_form": 6,
        "vectors": 4,
    }
    packed = native.PackedQuantizedWeights(256, 32, layout, False, None)
    packed.pack_gguf(random_matrix("IQ2_XS", 32, 256).rows, 17, 0, 32)
    values = np.empty((1, 256), np.float32)
    packed.lookup(np.zeros(1, np.int32), 1, values)  # of a table and a step that were never set
    assert not values.any()
    with pytest.raises(ValueError, match="layout must be that of the GGUF type"):
        packed.pack_gguf(random_matrix("IQ2_S", 32, 256).rows, 22, 0, 32)
    with pytest.raises(ValueError, match="at least"):
        packed.set_vectors(np.zeros((511, 8), np.uint8), 0.125)
    with pytest.raises(ValueError, match="multiple of 256"):
        native.PackedQuantizedWeights(224, 32, layout, False, None)
    with pytest.raises(ValueError, match="at most 4 codes"):
        packed.set_vectors(np.arange(512 * 8).reshape(512, 8).astype(np.uint8) % 5, 0.125)
    wrong = {"group_size": 32, "zero": 0, "scale_form": 1, "num_runs": 1, "vectors": 8}
    for part, other in wrong.items():
        bad = layout | {part: other}
        with pytest.raises(ValueError, match="no such quantized layout"):
            native.PackedQuantizedWeights(256, 32, bad, False, None)


def test_long_tables_need_runs() -> None:
    """Kernels look the second half of 2048 vectors up as runs that end once in 16."""
    packed = native.PackedQuantizedWeights(
        256,
        32,
        {"group_size": 32, "bits": 5, "zero": 16, "scale_dtype": 1, "scale_form": 6, "vectors": 1},
        False,
        None,
    )
    table = VECTOR_CODES["IQ1_S"].table()
    packed.set_vectors(table, 0.125)
    with pytest.raises(ValueError, match="runs"):
        packed.set_vectors(table[::-1].reshape(2, 1024, 8).swapaxes(0, 1).reshape(2048, 8), 0.125)


def test_scales_of_two_levels_need_their_blocks() -> None:
    """Super scales are nowhere but in blocks."""
    layout = LAYOUT | {"zero": 0, "scale_form": 1, "has_offsets": True}
    packed = native.PackedQuantizedWeights(256, 32, layout, False, None)
    codes, scales = np.zeros((32, 256), np.uint8), np.zeros((32, 8), np.int8)
    with pytest.raises(ValueError, match="packed from blocks"):
        packed.pack(codes, scales, scales, None, None, 0, 32)
