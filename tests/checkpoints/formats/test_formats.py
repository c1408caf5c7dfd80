"""Formats without a file of their own program: each value by a literal reading of the layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from quire.checkpoints.checkpoint import Checkpoint
from quire.checkpoints.formats.packed_words import unpack_words
from quire.checkpoints.quantized.quantization_config import read_quantization
from quire.checkpoints.quantized.quantized_checkpoint import QuantizedCheckpoint
from quire.core.errors import ModelLoadError, UnsupportedArchitectureError, WeightMismatchError
from quire.kernels.matrices.activation_scheme import ActivationScheme
from quire.kernels.matrices.quantized_tensor import QuantizedTensor

Tensors = dict[str, torch.Tensor]
MODULE = "model.layers.0.mlp.down_proj"


def read(
    folder: Path, settings: dict[str, Any], tensors: dict[str, torch.Tensor], extra: str = ""
) -> QuantizedTensor:
    """Write a checkpoint of one matrix and read it."""
    if extra:
        (folder / "config.json").write_text("{}")
        (folder / extra).write_text(json.dumps(settings))
    else:
        (folder / "config.json").write_text(json.dumps({"quantization_config": settings}))
    named = {f"{MODULE}.{part}": tensor.contiguous() for part, tensor in tensors.items()}
    save_file(named, folder / "model.safetensors")
    quantization = read_quantization(folder)
    assert quantization is not None
    found = QuantizedCheckpoint(Checkpoint(folder), quantization).tensor(f"{MODULE}.weight")
    assert isinstance(found, QuantizedTensor)
    return found


def bit_string(packed: np.ndarray, bits: int, count: int) -> list[int]:
    """Read codes of one row of words from their binary digits, lowest first."""
    digits = "".join(format(int(number) & 0xFFFFFFFF, "032b")[::-1] for number in packed)
    return [int(digits[i * bits : (i + 1) * bits][::-1], 2) for i in range(count)]


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_words_are_taken_apart(bits: int) -> None:
    words = np.random.default_rng(0).integers(-(2**31), 2**31, (5, 3 * bits), np.int32)
    count = 3 * 32 - 1
    want = [bit_string(row, bits, count) for row in list(words)]
    np.testing.assert_array_equal(unpack_words(words, bits, count), want)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
def test_gptq_in_any_order(tmp_path: Path, bits: int, version: str) -> None:
    random = np.random.default_rng(bits)
    rows, columns, size = 32, 96, 32
    words = random.integers(-(2**31), 2**31, (columns * bits // 32, rows), np.int32)
    zero_words = random.integers(-(2**31), 2**31, (3, rows * bits // 32), np.int32)
    scales = random.uniform(0.01, 0.1, (3, rows)).astype(np.float16)
    groups = random.permutation(np.arange(columns) // size).astype(np.int32)
    settings = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": size,
        "checkpoint_format": version,
        "desc_act": True,
        "sym": False,
    }
    arrays = {"qweight": words, "qzeros": zero_words, "scales": scales, "g_idx": groups}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    got = read(tmp_path, settings, tensors)
    codes = np.array([bit_string(words[:, n], bits, columns) for n in range(rows)])
    zeros = np.array([bit_string(row, bits, rows) for row in zero_words])
    zeros = zeros + (version == "gptq")
    if bits == 8:
        zeros %= 256
    want = np.empty((rows, columns), np.float32)
    for n in range(rows):
        for k in range(columns):
            g = groups[k]
            want[n, k] = np.float32(scales[g, n]) * np.float32(codes[n, k] - zeros[g, n])
    np.testing.assert_array_equal(got.float32(), want)


def e4m3(random: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(random.normal(0, 60, shape).astype(np.float32)).to(torch.float8_e4m3fn)


def test_blocks_of_deepseek(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    weight, scales = e4m3(random, 160, 320), random.uniform(1e-4, 1, (2, 3)).astype(np.float32)
    settings = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    tensors = {"weight": weight, "weight_scale_inv": torch.from_numpy(scales)}
    got = read(tmp_path, settings, tensors)
    want = weight.float().numpy() * scales.repeat(128, 0).repeat(128, 1)[:160, :320]
    np.testing.assert_array_equal(got.float32(), want)


@pytest.mark.parametrize("extra", ["", "hf_quant_config.json"])
def test_fp8_of_modelopt(tmp_path: Path, extra: str) -> None:
    random = np.random.default_rng(0)
    weight, scale = e4m3(random, 64, 96), torch.tensor(0.0123)
    settings: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": "FP8"}
    if extra:
        settings = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    tensors = {"weight": weight, "weight_scale": scale, "input_scale": torch.tensor(0.5)}
    got = read(tmp_path, settings, tensors, extra)
    np.testing.assert_array_equal(got.float32(), weight.float().numpy() * np.float32(0.0123))


def test_nvfp4_of_modelopt(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    packed = random.integers(0, 256, (32, 32), np.uint8)
    scales, factor = e4m3(random, 32, 4).abs(), np.float32(0.000321)
    tensors = {
        "weight": torch.from_numpy(packed),
        "weight_scale": scales,
        "weight_scale_2": torch.tensor(float(factor)),
        "input_scale": torch.tensor(0.5),
    }
    got = read(tmp_path, {"quant_method": "modelopt", "quant_algo": "NVFP4"}, tensors)
    half = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    book = np.concatenate([half, -half])
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(32, 64)
    want = book[codes] * (scales.float().numpy() * factor).repeat(16, 1)
    np.testing.assert_array_equal(got.float32(), want)


@pytest.mark.parametrize("zeros", [False, True])
def test_bytes_of_compressed_tensors_in_groups(tmp_path: Path, zeros: bool) -> None:
    random = np.random.default_rng(0)
    weight = random.integers(-128, 128, (32, 96)).astype(np.int8)
    scales = random.uniform(0.01, 0.1, (32, 3)).astype(np.float16)
    points = random.integers(-9, 9, (32, 3)).astype(np.int8)
    weights = {"num_bits": 8, "type": "int", "strategy": "group", "group_size": 32}
    settings = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": {"targets": ["re:.*down_proj"], "weights": weights}},
    }
    tensors = {"weight": torch.from_numpy(weight), "weight_scale": torch.from_numpy(scales)}
    if zeros:
        tensors["weight_zero_point"] = torch.from_numpy(points)
    got = read(tmp_path, settings, tensors)
    whole = weight.astype(np.float32) - (points if zeros else 0 * points).repeat(32, 1)
    want = whole * scales.astype(np.float32).repeat(32, 1)
    np.testing.assert_array_equal(got.float32(), want)


@pytest.mark.parametrize(("bits", "packing"), [(8, "8bit_u8"), (3, "3bit_32"), (2, "2bit_u8")])
def test_hqq_of_other_bits(tmp_path: Path, bits: int, packing: str) -> None:
    """Groups of 64 in rows of 96; code r of group g is in element g % elements, highest first."""
    random = np.random.default_rng(bits)
    rows, columns, size, per_element = 32, 96, 64, {8: 1, 3: 10, 2: 4}[bits]
    groups = rows * columns // size
    codes = random.integers(0, 1 << bits, (groups, size))
    elements = np.zeros((-(-groups // per_element), size), np.int32 if bits == 3 else np.uint8)
    for g in range(groups):
        place = per_element - 1 - g // len(elements)
        elements[g % len(elements)] |= (codes[g] << place * bits).astype(elements.dtype)
    scales = random.uniform(0.01, 0.1, (groups, 1)).astype(np.float16)
    zeros = random.uniform(0, 1 << bits, (groups, 1)).astype(np.float16)
    tensors = {
        "W_q": torch.from_numpy(elements),
        "scale": torch.from_numpy(scales),
        "zero": torch.from_numpy(zeros),
        "shape": torch.tensor([rows, columns]),
        "nbits": torch.tensor(bits, dtype=torch.int32),
        "axis": torch.tensor(1, dtype=torch.int32),
        "packing": torch.frombuffer(bytearray(packing.encode()), dtype=torch.uint8),
    }
    got = read(tmp_path, {"quant_method": "hqq"}, tensors)
    want = (codes.astype(np.float32) - zeros) * scales.astype(np.float32)
    np.testing.assert_array_equal(got.float32(), want.reshape(rows, columns))


def int4(random: np.random.Generator, **changes: np.ndarray) -> tuple[Tensors, np.ndarray]:
    """Return the parts of a pack-quantized matrix (32, 96) in groups of 32, and its values."""
    words = random.integers(-(2**31), 2**31, (32, 12), np.int32)
    scales = random.uniform(0.01, 0.1, (32, 3)).astype(np.float16)
    parts = {"weight_packed": words, "weight_scale": scales, "weight_shape": np.array([32, 96])}
    codes = np.array([bit_string(row, 4, 96) for row in list(words)])
    want = (codes - 8).astype(np.float32) * scales.astype(np.float32).repeat(32, 1)
    return {name: torch.from_numpy(part) for name, part in (parts | changes).items()}, want


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
CT: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": INT4}},
}


def test_groups_of_minus_one_are_runs_of_inputs(tmp_path: Path) -> None:
    tensors, want = int4(np.random.default_rng(0), weight_g_idx=np.full(96, -1, np.int32))
    got = read(tmp_path, CT, tensors)
    assert got.input_order is None
    np.testing.assert_array_equal(got.float32(), want)


def test_some_groups_of_minus_one_are_refused(tmp_path: Path) -> None:
    groups = np.arange(96, dtype=np.int32) // 32
    groups[7] = -1
    with pytest.raises(WeightMismatchError, match="weight_g_idx must name groups 0..2"):
        read(tmp_path, CT, int4(np.random.default_rng(0), weight_g_idx=groups)[0])


def test_formats_of_compressed_tensors_mixed(tmp_path: Path) -> None:
    """One group of modules in int4, one in FP8, the rest floats; each group has its format."""
    random = np.random.default_rng(0)
    packed, want = int4(random)
    weight, scale = e4m3(random, 64, 96), torch.rand(64, 1)
    fp8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
    inputs = fp8 | {"strategy": "token", "dynamic": True}
    groups = {
        "group_0": {"targets": ["re:.*down_proj"], "weights": INT4, "format": "pack-quantized"},
        "group_1": {
            "targets": ["re:.*q_proj"],
            "weights": fp8,
            "format": "float-quantized",
            "input_activations": inputs,
        },
    }
    settings = CT | {"format": "mixed-precision", "config_groups": groups, "ignore": ["lm_head"]}
    settings |= {"kv_cache_scheme": fp8, "sparsity_config": {"format": "dense"}}
    settings |= {"transform_config": {}}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": settings}))
    attention = "model.layers.0.self_attn"
    scales = ("k_scale", "attn.k_scale", "k_proj.k_scale", "v_proj.v_scale")
    named = {f"{MODULE}.{part}": tensor for part, tensor in packed.items()}
    named |= {f"{attention}.{name}": torch.ones(1) for name in scales}
    named |= {
        f"{attention}.q_proj.weight": weight,
        f"{attention}.q_proj.weight_scale": scale,
        f"{attention}.q_proj.input_scale": torch.ones(1),
        "lm_head.weight": torch.zeros(32, 64),
    }
    save_file(named, tmp_path / "model.safetensors")
    quantization = read_quantization(tmp_path)
    assert quantization is not None
    checkpoint = QuantizedCheckpoint(Checkpoint(tmp_path), quantization)
    query = f"{attention}.q_proj.weight"
    assert checkpoint.names == {f"{MODULE}.weight", query, "lm_head.weight"}
    down, q = checkpoint.tensor(f"{MODULE}.weight"), checkpoint.tensor(query)
    assert isinstance(down, QuantizedTensor)
    assert isinstance(q, QuantizedTensor)
    np.testing.assert_array_equal(down.float32(), want)
    np.testing.assert_array_equal(q.float32(), weight.float().numpy() * scale.numpy())
    assert (down.activations, q.activations) == (None, ActivationScheme("e4m3"))
    first, *others = checkpoint.notices()
    assert first.startswith("quantized by compressed-tensors: ")
    assert others == [
        "kv_cache_scheme is not used: the cache has the type of --kv-cache-dtype",
        "scales of activations are not used (1): they stay in the engine's own precision",
        "scales of the KV cache are not used (4): it has its own",
    ]


def test_settings_of_autogptq_in_a_file_of_their_own(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    words = random.integers(-(2**31), 2**31, (12, 32), np.int32)
    scales = random.uniform(0.01, 0.1, (3, 32)).astype(np.float16)
    zeros = np.full((3, 4), 0x77777777, np.int32)
    tensors = {"qweight": words, "qzeros": zeros, "scales": scales}
    settings = {"bits": 4, "group_size": 32, "desc_act": False, "sym": True}
    parts = {name: torch.from_numpy(part) for name, part in tensors.items()}
    got = read(tmp_path, settings, parts, "quantize_config.json")
    codes = np.array([bit_string(words[:, n], 4, 96) for n in range(32)])
    want = (codes - 8).astype(np.float32) * scales.T.astype(np.float32).repeat(32, 1)
    np.testing.assert_array_equal(got.float32(), want)


def test_settings_of_autoawq_in_a_file_of_their_own(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    words = random.integers(-(2**31), 2**31, (96, 4), np.int32)
    zero_words = random.integers(-(2**31), 2**31, (3, 4), np.int32)
    scales = random.uniform(0.01, 0.1, (3, 32)).astype(np.float16)
    tensors = {"qweight": words, "qzeros": zero_words, "scales": scales}
    settings = {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}
    parts = {name: torch.from_numpy(part) for name, part in tensors.items()}
    got = read(tmp_path, settings, parts, "quant_config.json")
    place = [0, 4, 1, 5, 2, 6, 3, 7]
    spread = [8 * (n // 8) + place[n % 8] for n in range(32)]
    codes, zeros = (
        np.array([bit_string(row, 4, 32) for row in packed])[:, spread]
        for packed in (words, zero_words)
    )
    want = (codes - zeros.repeat(32, 0)).astype(np.float32) * scales.astype(np.float32).repeat(
        32, 0
    )
    np.testing.assert_array_equal(got.float32(), want.T)


# By numpy: torch fills by threads of its own, which must not begin before workers are forked.
NAN8, MINUS_NAN8, ZERO8 = (
    torch.from_numpy(np.full((64, 96), code, np.uint8)).view(torch.float8_e4m3fn)
    for code in (0x7F, 0xFF, 0)
)
FP8 = {"quant_method": "fp8"}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True}
STATE = "weight.quant_state.bitsandbytes__nf4"


def state(**changes: Any) -> torch.Tensor:
    settings = {"shape": [64, 96], "blocksize": 64, "quant_type": "nf4"} | changes
    return torch.frombuffer(bytearray(json.dumps(settings).encode()), dtype=torch.uint8)


def nf4(**changes: torch.Tensor) -> dict[str, torch.Tensor]:
    tensors = {
        "weight": torch.zeros(64 * 48, 1, dtype=torch.uint8),
        "weight.absmax": torch.ones(96),
        "weight.quant_map": torch.linspace(-1, 1, 16),
        STATE: state(),
    }
    return tensors | {name.replace("__", "."): value for name, value in changes.items()}


def test_nested_scales_of_odd_runs_are_numbers(tmp_path: Path) -> None:
    """A run of 160 groups, no power of two, is not held as bytes of it."""
    rng = np.random.default_rng(0)
    codes, book = rng.integers(0, 256, 96, np.uint8), rng.random(256, np.float32)
    runs = rng.random(2, np.float32)
    tensors = nf4(
        weight__absmax=torch.from_numpy(codes),
        weight__nested_quant_map=torch.from_numpy(book),
        weight__nested_absmax=torch.from_numpy(runs),
    )
    tensors[STATE] = state(nested_blocksize=80, nested_offset=0.25)
    scales = [
        book[code] * runs[number // 80] + np.float32(0.25) for number, code in enumerate(codes)
    ]
    want = -np.repeat(scales, 64).reshape(64, 96)  # each code is 0, which means -1
    np.testing.assert_array_equal(read(tmp_path, BNB, tensors).float32(), want)


@pytest.mark.parametrize(
    ("settings", "tensors", "message"),
    [
        (FP8, {"weight": NAN8, "weight_scale": torch.ones(1)}, "weight must have no NaN"),
        (FP8, {"weight": MINUS_NAN8, "weight_scale": torch.ones(1)}, "weight must have no NaN"),
        (FP8, {"weight": ZERO8, "weight_scale": torch.ones(3)}, "weight_scale must have shape"),
        (BNB, nf4(weight__absmax=torch.full((96,), torch.nan)), "must be finite"),
        (BNB, nf4(weight__absmax=torch.ones(95)), "absmax must have shape"),
        (BNB, nf4(weight__quant_map=torch.ones(8)), "quant_map must have shape"),
        (BNB, nf4() | {STATE: state(shape=[-64, 96])}, "must be JSON of a matrix's state"),
        (BNB, nf4() | {STATE: state(shape=[64])}, "must be JSON of a matrix's state"),
        (BNB, nf4() | {STATE: state(shape=[2**30, 2**30])}, "must have shape"),
        (BNB, nf4() | {STATE: state(blocksize=0)}, "must be JSON of a matrix's state"),
        (BNB, nf4() | {STATE: state(blocksize=7)}, "common divisor"),
        (BNB, nf4() | {STATE: torch.zeros(9, dtype=torch.uint8)}, "must be JSON"),
        (BNB, nf4() | {STATE: torch.from_numpy(np.zeros(99999, np.uint8))}, "must be at most"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_parts_out_of_range_are_refused(
    tmp_path: Path, settings: dict[str, Any], tensors: dict[str, torch.Tensor], message: str
) -> None:
    with pytest.raises(WeightMismatchError, match=message) as refused:
        read(tmp_path, settings, tensors)
    assert MODULE in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "quant_method is required"),
        ({"quant_method": "eetq"}, "quant_method must be one of"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "must be two sizes"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt must be e4m3"),
        ({"quant_method": "gptq"}, "bits is required"),
        ({"quant_method": "gptq", "bits": 4, "group_size": "x"}, "group_size must be an integer"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "must be gptq or"),
        ({"quant_method": "compressed-tensors"}, "config_groups is required"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {}}}, "must quantize"),
        (CT | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "must be dense"),
        (CT | {"transform_config": {"config_groups": {"R1": {}}}}, "rotations are not done"),
        (CT | {"kv_cache_scheme": 8}, "kv_cache_scheme must be an object"),
        ({"quant_method": "gptq", "bits": 4, "is_marlin_format": True}, "must be false"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8"}, "quant_algo must be FP8 or NVFP4"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_out_of_range_are_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    tensors = {"weight": torch.zeros(64, 96)}
    with pytest.raises((ModelLoadError, UnsupportedArchitectureError), match=message):
        read(tmp_path, {"x": 1} | settings, tensors)
