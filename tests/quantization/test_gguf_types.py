"""GGUF's tensor types, bit for bit as the ``gguf`` package reads and writes them."""

import numpy as np
import pytest

from quire.quantization.gguf_layouts import LAYOUT_BY_CODE, LAYOUTS
from quire.quantization.gguf_types import QUANTIZED, WRITABLE, dequantize, quantize, unpack

gguf = pytest.importorskip("gguf")

#: Where a block has its float16 numbers.
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip


def random_rows(name, num_rows, num_blocks, seed=0):
    """Return rows whose blocks have every bit random but the scales finite."""
    generator = np.random.default_rng(seed)
    layout = LAYOUTS[name]
    blocks = generator.integers(0, 256, (num_rows * num_blocks, layout.block_bytes), np.uint8)
    for at in HALVES.get(name, ()):
        scales = generator.standard_normal(len(blocks)).astype(np.float16)
        scales[2::5], scales[3::5] = 0, 6e-8
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(num_rows, -1)


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
def test_unpacked_groups_rebuild_the_values(name):
    layout = LAYOUTS[name]
    blocks = random_rows(name, 5, 1)
    groups = unpack(name, blocks)
    assert groups.codes.dtype == np.int8
    size = layout.block_size // groups.scales.shape[1]
    assert size in (16, 32)
    values = groups.codes.astype(np.float32) * np.repeat(groups.scales, size, axis=1)
    if groups.offsets is not None:
        values += np.repeat(groups.offsets, size, axis=1)
    assert np.array_equal(values, dequantize(name, blocks))


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
