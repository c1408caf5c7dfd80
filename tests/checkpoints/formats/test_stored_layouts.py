"""What is written in a layout is read back by its reader, through a checkpoint's own files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from quire.checkpoints.checkpoint import Checkpoint
from quire.checkpoints.formats.packed_words import pack_words, unpack_words
from quire.checkpoints.quantized.quantization_config import read_quantization
from quire.checkpoints.quantized.quantized_checkpoint import QuantizedCheckpoint
from quire.checkpoints.safetensors_writer import write_safetensors
from quire.core.errors import ConfigError
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.quantization.producers.float8 import quantize_float8
from quire.quantization.producers.gptq import GPTQSettings, quantize_gptq
from quire.quantization.producers.integer_grid import IntegerGrid
from quire.quantization.producers.round_to_nearest import quantize_rtn
from quire.quantizing.methods import METHODS
from quire.quantizing.produce import LinkedMatrices, produce
from quire.quantizing.quantization_run import in_file_order
from quire.quantizing.scheme import QuantizationScheme, create_scheme
from quire.quantizing.stored_format import FORMATS

MODULE = "model.layers.0.mlp.down_proj"


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("count", [1, 31, 32, 33, 96, 704])
def test_words_are_put_together(bits: int, count: int) -> None:
    codes = np.random.default_rng(0).integers(0, 1 << bits, (5, count), np.uint8)
    words = pack_words(codes, bits)
    assert words.dtype == np.int32 and words.shape == (5, -(-count * bits // 32))
    np.testing.assert_array_equal(unpack_words(words, bits, count), codes)


def read_back(
    folder: Path, scheme: QuantizationScheme, name: str, matrix: QuantizedTensor
) -> QuantizedTensor:
    """Write a checkpoint of one matrix and read it."""
    form = FORMATS[name]
    settings = {"quantization_config": form.config({MODULE: scheme}, [])}
    (folder / "config.json").write_text(json.dumps(settings))
    parts = {f"{MODULE}.{part}": data for part, data in form.store(matrix, scheme).items()}
    for _ in write_safetensors(folder / "model.safetensors", in_file_order(parts)):
        pass
    quantization = read_quantization(folder)
    assert quantization is not None
    found = QuantizedCheckpoint(Checkpoint(folder), quantization).tensor(f"{MODULE}.weight")
    assert isinstance(found, QuantizedTensor)
    return found


CASES = [
    (name, bits, symmetric)
    for name in METHODS["rtn"].formats
    for bits in (2, 3, 4, 8)
    for symmetric in (True, False)
    if name != "awq" or bits == 4
]


@pytest.mark.parametrize(("name", "bits", "symmetric"), CASES)
@pytest.mark.parametrize(("shape", "size"), [((64, 96), 32), ((32, 192), -1), ((96, 704), 64)])
def test_written_is_read(
    tmp_path: Path, name: str, bits: int, symmetric: bool, shape: tuple[int, int], size: int
) -> None:
    weight = np.random.default_rng(bits).standard_normal(shape).astype(np.float32)
    weight[0] = 0
    weight[1] = np.abs(weight[1]) + 1
    scheme = QuantizationScheme(method="rtn", bits=bits, group_size=size, symmetric=symmetric)
    made = quantize_rtn(f"{MODULE}.weight", weight, scheme.grid)
    got = read_back(tmp_path, scheme, name, made)
    np.testing.assert_array_equal(got.codes, made.codes)
    np.testing.assert_array_equal(got.float32(), made.float32())


@pytest.mark.parametrize("name", ["gptq", "compressed-tensors"])
@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("columns", [96, 128])
def test_columns_by_the_size_of_inputs(tmp_path: Path, name: str, bits: int, columns: int) -> None:
    random = np.random.default_rng(0)
    weight = random.standard_normal((64, columns)).astype(np.float32)
    inputs = random.standard_normal((500, columns)) * random.lognormal(0, 1, columns)
    scheme = QuantizationScheme(bits=bits, group_size=32, act_order=True)
    made = quantize_gptq(
        f"{MODULE}.weight", weight, inputs.T @ inputs, scheme.grid, GPTQSettings(act_order=True)
    )
    got = read_back(tmp_path, scheme, name, made)
    assert got.input_order is not None
    np.testing.assert_array_equal(got.float32(), made.float32())


def test_a_short_last_group_is_stored_as_gptq(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((64, 704)).astype(np.float32)
    made = quantize_rtn(f"{MODULE}.weight", weight, IntegerGrid(4, 128))
    got = read_back(tmp_path, QuantizationScheme(method="rtn"), "gptq", made)
    assert got.scales.shape == (64, 6)
    np.testing.assert_array_equal(got.float32(), made.float32())


@pytest.mark.parametrize(
    ("name", "scales"),
    [
        ("compressed-tensors", "channel"),
        ("compressed-tensors", "tensor"),
        ("compressed-tensors", "block"),
        ("fp8", "block"),
        ("fp8", "tensor"),
    ],
)
@pytest.mark.parametrize("shape", [(64, 96), (160, 704), (256, 256)])
def test_floats_of_8_bits_are_read(
    tmp_path: Path, name: str, scales: str, shape: tuple[int, int]
) -> None:
    weight = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    weight *= np.random.default_rng(1).lognormal(0, 1, (shape[0], 1)).astype(np.float32)
    weight[0] = 0
    made = quantize_float8(f"{MODULE}.weight", weight, scales)
    got = read_back(tmp_path, create_scheme("fp8", {"scales": scales}), name, made)
    np.testing.assert_array_equal(got.codes, made.codes)
    np.testing.assert_array_equal(got.float32(), made.float32())
    # Three bits of mantissa: half a step is a sixteenth, or half of the smallest step.
    spread = np.repeat(made.scales, made.group_size, axis=1)[:, : shape[1]]
    most = np.maximum(np.abs(weight) / 16, spread * 2.0**-10)
    assert (np.abs(made.float32() - weight) <= most * (1 + 1e-5)).all()


@pytest.mark.parametrize("method", ["int8", "smoothquant", "llm-int8", "nvfp4", "mxfp4"])
@pytest.mark.parametrize("shape", [(64, 96), (160, 704)])
def test_what_methods_make_is_read(tmp_path: Path, method: str, shape: tuple[int, int]) -> None:
    random = np.random.default_rng(0)
    weights = [random.standard_normal(shape).astype(np.float32) * size for size in (1, 3)]
    weights[0][0] = 0
    scheme = create_scheme(method, {})
    made = produce(LinkedMatrices(scheme, [MODULE, "other"], weights, None, 2))
    got = read_back(tmp_path, scheme, METHODS[method].formats[0], made[0])
    np.testing.assert_array_equal(got.codes, made[0].codes)
    np.testing.assert_array_equal(got.float32(), made[0].float32())
    assert np.square(got.float32() - weights[0]).sum() <= 0.02 * np.square(weights[0]).sum()
    if method == "nvfp4":
        assert made[0].row_scales is not None and made[1].row_scales is not None
        assert made[0].row_scales[0] == made[1].row_scales[0]


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("shape", [(64, 96), (160, 704), (48, 80)])
def test_normal_floats_are_read(tmp_path: Path, double: bool, shape: tuple[int, int]) -> None:
    weight = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    weight[0] = 0
    scheme = create_scheme("nf4", {"double_quant": double})
    (made,) = produce(LinkedMatrices(scheme, [MODULE], [weight], None, 1))
    got = read_back(tmp_path, scheme, "bitsandbytes", made)
    assert got.form == made.form and (got.nested is not None) == double
    np.testing.assert_array_equal(got.codes, made.codes)
    np.testing.assert_array_equal(got.float32(), made.float32())


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("shape", "size"), [((64, 96), 32), ((32, 192), -1), ((96, 704), 64)])
def test_zeros_that_are_floats_are_read(
    tmp_path: Path, bits: int, shape: tuple[int, int], size: int
) -> None:
    weight = np.random.default_rng(bits).standard_normal(shape).astype(np.float32)
    weight[0], weight[1] = 0, 0.5
    scheme = create_scheme("hqq", {"bits": bits, "group_size": size})
    (made,) = produce(LinkedMatrices(scheme, [MODULE], [weight], None, 1))
    got = read_back(tmp_path, scheme, "hqq", made)
    np.testing.assert_array_equal(got.codes, made.codes)
    np.testing.assert_array_equal(got.float32(), made.float32())


def test_bitsandbytes_stores_all_matrices_alike() -> None:
    schemes = {
        str(double): create_scheme("nf4", {"double_quant": double}) for double in (False, True)
    }
    with pytest.raises(ConfigError, match="stores all matrices alike"):
        FORMATS["bitsandbytes"].fit(schemes, dict.fromkeys(schemes, (64, 64)))


def test_rows_that_groups_do_not_fill_stay_floats() -> None:
    schemes = {name: create_scheme("mxfp4", {}) for name in ("whole", "short")}
    shapes = {"whole": (8, 96), "short": (8, 80)}
    fitted, notices = FORMATS["compressed-tensors"].fit(schemes, shapes)
    assert list(fitted) == ["whole"]
    assert "1 matrix left as floats" in notices[0] and "short" in notices[0]


def test_a_recipe_of_kinds_is_a_group_for_each() -> None:
    schemes = {"a": create_scheme("fp8", {}), "b": create_scheme("nvfp4", {})}
    config = FORMATS["compressed-tensors"].config(schemes, [])
    groups = config["config_groups"].values()
    assert config["format"] == "mixed-precision"
    assert {group["format"] for group in groups} == {"float-quantized", "nvfp4-pack-quantized"}


def test_a_format_refuses_methods_it_cannot_store() -> None:
    schemes = {"a": create_scheme("nvfp4", {})}
    with pytest.raises(ConfigError, match="gptq cannot store --method nvfp4"):
        FORMATS["gptq"].fit(schemes, {"a": (64, 64)})


def test_blocks_have_no_scale_of_all_inputs() -> None:
    with pytest.raises(ConfigError, match="--static-inputs must come with --scales channel"):
        create_scheme("fp8", {"scales": "block", "static_inputs": True})


def test_deepseek_s_format_takes_one_kind_of_inputs() -> None:
    schemes = {
        str(static): create_scheme("fp8", {"scales": "tensor", "static_inputs": static})
        for static in (False, True)
    }
    with pytest.raises(ConfigError, match="the same for all matrices; got fp8, a scale"):
        FORMATS["fp8"].fit(schemes, dict.fromkeys(schemes, (64, 64)))


def test_settings_that_a_method_does_not_take_are_refused() -> None:
    for method, settings in (("fp8", {"bits": 4}), ("rtn", {"scales": "block"})):
        with pytest.raises(ConfigError, match=f"--{[*settings][0]} must come with"):
            create_scheme(method, settings)
