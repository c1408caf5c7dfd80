"""Blocks of GGUF's types made of floats: what is stored, how near it is, whether it is equal."""

import json

import numpy as np
import pytest

from quire.checkpoints.gguf.gguf_layouts import LAYOUTS
from quire.checkpoints.gguf.gguf_types import FORMS, dequantize, unpack
from quire.kernels.matrices.vector_codes import VECTOR_CODES
from quire.models.gguf.gguf_export import GgufExport
from quire.quantization.producers.float4 import quantize_mxfp4
from quire.quantization.producers.gguf.gguf_blocks import KINDS, search
from quire.quantization.producers.gguf.gguf_pack import PACKABLE, pack
from quire.quantization.producers.gguf.gguf_quantize import PRODUCED, quantize_rows
from quire.store.hub import resolve_model
from tests.quantization.gguf_cases import random_rows
from tests.sizes import sized
from tools.quantized_fixtures.make_llama_quantize import (
    MATRIX,
    OUT,
    importance,
    weighted_error,
)

THEIRS = json.loads(OUT.read_text())["errors"]
#: Types that have no code for any one value, and MXFP4, whose scales are powers of two.
COARSE = (*VECTOR_CODES, "MXFP4")
TWO_LEVELS = [name for name, kind in KINDS.items() if kind.scales is not None]


def weights(rows=6, columns=768, seed=0):
    """Normal weights, some columns of another size, and one large weight a row."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((rows, columns)) * generator.uniform(0.2, 2, columns)
    values[:, 5] *= 6
    return (values * 0.05).astype(np.float32)


@pytest.mark.parametrize("name", PACKABLE)
def test_pack_is_the_inverse_of_unpack(name):
    blocks = random_rows(name, 1, 300).reshape(-1, LAYOUTS[name].block_bytes)
    if name == "TQ1_0":
        # Of five digits in base 3 a byte is 1 of 243; others mean the same as one of those.
        blocks = pack(name, unpack(name, blocks))
    assert np.array_equal(pack(name, unpack(name, blocks)), blocks)


@pytest.mark.parametrize("name", ["TQ1_0", "TQ2_0"])
def test_ternary_weights_are_kept(name):
    values = np.random.default_rng(0).integers(-1, 2, (3, 512)).astype(np.float32) * 0.5
    assert np.array_equal(dequantize(name, quantize_rows(name, values)), values)


def test_mxfp4_is_rounded_as_in_other_files():
    rows = weights()
    want = quantize_mxfp4("w", rows).float32()
    assert np.array_equal(dequantize("MXFP4", quantize_rows("MXFP4", rows)), want)


@pytest.mark.parametrize(
    ("name", "bits"),
    [("Q2_K", 2.625), ("Q3_K", 3.4375), ("Q4_K", 4.5), ("Q5_K", 5.5), ("Q6_K", 6.5625),
     ("Q8_0", 8.5), ("Q4_0", 4.5), ("IQ4_NL", 4.5), ("IQ4_XS", 4.25), ("IQ3_S", 3.4375),
     ("IQ3_XXS", 3.0625), ("IQ2_S", 2.5625), ("IQ2_XS", 2.3125), ("IQ2_XXS", 2.0625),
     ("IQ1_M", 1.75), ("IQ1_S", 1.5625), ("TQ2_0", 2.0625), ("TQ1_0", 1.6875), ("MXFP4", 4.25)],
)  # fmt: skip
def test_bits_per_weight(name, bits):
    rows = weights()
    made = quantize_rows(name, rows)
    assert made.shape[0] == len(rows)
    assert made.nbytes * 8 == bits * rows.size


@pytest.mark.parametrize("name", KINDS)
def test_the_bytes_are_what_was_chosen(name):
    blocks = weights().reshape(-1, LAYOUTS[name].block_size)
    chosen = search(name, blocks)
    stored = unpack(name, pack(name, chosen))
    for part in ("codes", "scales", "offsets", "super_scales", "super_offsets"):
        want, got = getattr(chosen, part), getattr(stored, part)
        assert (want is None) == (got is None)
        if want is not None:
            assert np.array_equal(got, want), part


@pytest.mark.parametrize("name", [*KINDS, *VECTOR_CODES])
def test_bytes_do_not_depend_on_threads_or_neighbours(name):
    # Three parts, or four, that end inside rows: a thread searches one at a time.
    rows = weights(sized(90, 140))
    counts = np.random.default_rng(1).uniform(0, 3, 768).astype(np.float32)
    whole = quantize_rows(name, rows, counts, threads=1)
    assert np.array_equal(quantize_rows(name, rows, counts, threads=3), whole)
    assert np.array_equal(quantize_rows(name, rows[77:78], counts), whole[77:78])


def error(name, made, rows, counts):
    return float((counts * (dequantize(name, made) - rows) ** 2).sum())


@pytest.mark.parametrize("name", [*KINDS, *VECTOR_CODES])
def test_an_importance_lowers_the_error_that_it_weighs(name):
    rows = weights(40)
    counts = np.random.default_rng(2).lognormal(0, 2, 768).astype(np.float32)
    with_it = error(name, quantize_rows(name, rows, counts), rows, counts)
    without = error(name, quantize_rows(name, rows), rows, counts)
    assert with_it < without


@pytest.fixture(scope="module")
def matrix():
    export = GgufExport(resolve_model("quire-tiny"), "F32")
    plan = next(plan for plan in export.tensors if plan.name == MATRIX)
    return np.frombuffer(b"".join(plan.chunks()), np.float32).reshape(plan.shape)


@pytest.mark.parametrize("name", THEIRS)
def test_errors_are_below_those_of_llama_quantize(name, matrix):
    """With the same importance; without one what each counts differs, so all errors alike here."""
    counts = importance(matrix.shape[1])
    got = dequantize(name, quantize_rows(name, matrix, counts))
    assert weighted_error(got, matrix, counts) < THEIRS[name]["importance"]
    if "plain" not in THEIRS[name]:
        return
    got = dequantize(name, quantize_rows(name, matrix))
    # Q8_0, Q4_0 and Q4_1 are rounded as it rounds them.
    assert weighted_error(got, matrix, np.ones_like(counts)) <= THEIRS[name]["plain"]


@pytest.mark.parametrize("name", [name for name in KINDS if FORMS[name].bits < 5])
def test_what_is_on_the_grid_is_kept(name):
    """A block whose values one choice of codes and scales gives exactly."""
    kind, size = KINDS[name], LAYOUTS[name].block_size
    levels = 3 if name.startswith("TQ") else 1 << FORMS[name].bits
    codes = np.resize(np.arange(levels), (1, size)).astype(np.uint8)
    step = np.float32(0.125)
    values = codes.astype(np.float32)
    if FORMS[name].code_book is not None:
        values = np.array(FORMS[name].code_book, np.float32)[codes]
    elif not kind.has_offsets:
        values -= FORMS[name].zero
    want = values * step
    got = dequantize(name, quantize_rows(name, want, np.ones(size, np.float32)))
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", [name for name in PRODUCED if name not in COARSE])
@pytest.mark.parametrize("value", [0.0, 1.0, -2.0, 1e-8, -60000.0])
def test_blocks_of_one_value_are_finite_and_near(name, value):
    rows = np.full((1, 256), value, np.float32)
    for counts in (None, np.ones(256, np.float32), np.zeros(256, np.float32)):
        got = dequantize(name, quantize_rows(name, rows, counts))
        assert np.isfinite(got).all()
        # Two levels of scales are rounded, and those of 1e-8 are no float16.
        assert np.abs(got - value).max() <= max(0.02 * abs(value), 1e-6)


@pytest.mark.parametrize("name", TWO_LEVELS)
def test_groups_that_differ_by_orders_of_magnitude_are_finite(name):
    rows = weights(4) * np.repeat(np.float32(10.0) ** np.arange(-6, 6), 64)
    got = dequantize(name, quantize_rows(name, rows))
    assert np.isfinite(got).all()
    assert ((got - rows) ** 2).sum() < 0.2 * (rows**2).sum()
