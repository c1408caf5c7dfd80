"""GGUF's tensor types, bit for bit as the ``gguf`` package reads and writes them."""

import numpy as np
import pytest

from quire.checkpoints.gguf.gguf_layouts import LAYOUT_BY_CODE, LAYOUTS
from quire.checkpoints.gguf.gguf_types import (
    FORMS,
    QUANTIZED,
    WRITABLE,
    dequantize,
    quantize,
)
from tests.quantization.gguf_cases import random_rows, rows_of_every_power

gguf = pytest.importorskip("gguf")


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_those_of_gguf(name):
    layout, theirs = LAYOUTS[name], gguf.GGMLQuantizationType[name]
    assert layout.code == theirs.value
    assert (layout.block_size, layout.block_bytes) == gguf.GGML_QUANT_SIZES[theirs]
    assert LAYOUT_BY_CODE[theirs.value] is layout


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(("num_rows", "num_blocks"), [(1, 1), (7, 3), (33, 2)])
def test_dequantize_is_bit_equal(name, num_rows, num_blocks):
    rows = random_rows(name, num_rows, num_blocks, seed=num_rows)
    if not LAYOUTS[name].is_quantized:
        values = np.random.default_rng(0).standard_normal((num_rows, num_blocks), np.float32)
        rows = gguf.quantize(values, gguf.GGMLQuantizationType[name]).view(np.uint8)
    want = gguf.dequantize(rows, gguf.GGMLQuantizationType[name])
    got = dequantize(name, rows)
    assert got.shape == want.shape == (num_rows, num_blocks * LAYOUTS[name].block_size)
    assert np.array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("name", QUANTIZED)
def test_memory_is_nearly_the_files(name):
    """Two levels of scales are kept, each in whole bytes or half ones."""
    rows, columns = 64, 4096
    stored = rows * columns // LAYOUTS[name].block_size * LAYOUTS[name].block_bytes
    # Five codes of TQ1_0 share a byte; they are held in two bits each.
    stored = rows * columns // 256 * 66 if name == "TQ1_0" else stored
    assert stored <= FORMS[name].matrix_bytes(rows, columns) <= 1.04 * stored


def test_every_scale_of_mxfp4_but_nan_is_bit_equal():
    rows = rows_of_every_power()
    with np.errstate(over="ignore"):
        want = gguf.dequantize(rows, gguf.GGMLQuantizationType.MXFP4)
        got = dequantize("MXFP4", rows)
        assert np.array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("name", WRITABLE)
def test_quantize_is_bit_equal(name):
    generator = np.random.default_rng(1)
    values = generator.standard_normal((40, 96), np.float32)
    values[0] = 0
    values[1] = -0.0
    values[2, :32] = 7.0
    values[3] *= np.float32(1e-8)
    values[4, :64] = np.repeat([-3.0, 3.0], 32)
    values[5] = np.round(values[5] * 4) / 4
    want = gguf.quantize(values, gguf.GGMLQuantizationType[name]).view(np.uint8)
    assert np.array_equal(quantize(name, values), want)


@pytest.mark.parametrize(("name", "steps"), [("Q8_0", 127), ("Q4_0", 8), ("Q4_1", 15)])
def test_error_is_within_half_a_step(name, steps):
    values = np.random.default_rng(2).uniform(-1, 1, (64, 32)).astype(np.float32)
    low, high = values.min(1, keepdims=True), values.max(1, keepdims=True)
    span = high - low if name == "Q4_1" else np.abs(values).max(1, keepdims=True)
    # Q4_0 has no code for the far end of the smaller side, so a whole step there. The scale itself
    # is rounded to float16.
    share = 1.0 if name == "Q4_0" else 0.5
    bound = span / steps * share + np.abs(values) * 2**-10 + 2**-10
    assert (np.abs(dequantize(name, quantize(name, values)) - values) <= bound).all()


def test_bfloat16_keeps_nan_and_infinity():
    values = np.array([[np.inf, -np.inf, np.nan, np.float32(3.39e38)]], np.float32)
    got = dequantize("BF16", quantize("BF16", values))
    assert np.array_equal(got[0, :2], values[0, :2])
    assert np.isnan(got[0, 2])
    assert np.array_equal(
        quantize("BF16", values),
        gguf.quantize(values, gguf.GGMLQuantizationType.BF16).view(np.uint8),
    )
