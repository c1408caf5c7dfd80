"""Checkpoints that other programs quantized: their own values, bit for bit, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from quire.checkpoints.checkpoint import Checkpoint
from quire.checkpoints.formats.gptq import store_gptq
from quire.checkpoints.quantized.quantization_config import read_quantization
from quire.checkpoints.quantized.quantized_checkpoint import QuantizedCheckpoint
from quire.checkpoints.safetensors_file import SafetensorsFile
from quire.core.errors import ModelLoadError
from quire.kernels.matrices.host_tensor import HostTensor
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.kernels.registry import create_backend
from quire.models.config.config_reader import read_model_config
from quire.models.family_tensors import open_tensors
from quire.models.loader import load_model
from quire.models.weight_bytes import expected_weight_bytes
from quire.quantization.quantization_plan import QuantizationPlan
from quire.quantization.rounding_schemes import create_scheme, quantize
from tests.kernels.bfloat16 import brain

FIXTURES = Path(__file__).parents[1] / "fixtures" / "quantized"
#: Of gpt-oss, whose experts are several matrices in one tensor: see test_gpt_oss.
APART = "gpt-oss-mxfp4"
FOLDERS = sorted({path.parent.name for path in FIXTURES.glob("*/config.json")} - {APART})
#: bitsandbytes multiplies by a scale and by 1 / 127 one after the other.
#: HQQ rounds ``code - zero`` to float16 before it multiplies.
LAST_BIT = {"bnb-int8", "hqq-w4-g64"}


Tensors = dict[str, torch.Tensor]


def opened(folder: Path) -> QuantizedCheckpoint:
    quantization = read_quantization(folder)
    assert quantization is not None
    return QuantizedCheckpoint(Checkpoint(folder), quantization)


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round float32 to the type that a library dequantizes to."""
    if dtype == "float16":
        return values.astype(np.float16).astype(np.float32)
    return brain(values) if dtype == "bfloat16" else values


@pytest.mark.parametrize("name", FOLDERS)
def test_values_are_those_of_the_program_that_wrote_them(name: str) -> None:
    """One matrix whole, to see where it differs; the others by the digest of their bytes."""
    folder = FIXTURES / name
    checkpoint = opened(folder)
    theirs = SafetensorsFile(folder / "dequantized.safetensors")
    assert theirs.entries
    for weight in theirs.entries:
        ours, want = checkpoint.tensor(weight), theirs.tensor(weight)
        assert isinstance(ours, QuantizedTensor)
        assert ours.shape == want.shape == checkpoint.entry(weight).shape
        got, values = rounded(ours.float32(), want.dtype), want.float32()
        if name in LAST_BIT:
            dtype = np.float16 if want.dtype == "float16" else np.float32
            np.testing.assert_array_max_ulp(got.astype(dtype), values.astype(dtype), 1)
        else:
            np.testing.assert_array_equal(got, values)
    if name in LAST_BIT:
        return
    digests = json.loads((folder / "dequantized.json").read_text())
    assert len(digests) > len(theirs.entries)
    for weight, entry in digests.items():
        values = checkpoint.tensor(weight).float32()
        assert values.shape == tuple(entry["shape"])
        data = torch.from_numpy(values).to(getattr(torch, entry["dtype"])).view(torch.uint8)
        assert hashlib.sha256(data.numpy().tobytes()).hexdigest() == entry["sha256"], weight


def test_hqq_differs_only_where_the_difference_is_rounded() -> None:
    """HQQ's own two roundings, done to our parts, give its digests of all matrices."""
    folder = FIXTURES / "hqq-w4-g64"
    checkpoint = opened(folder)
    for weight, entry in json.loads((folder / "dequantized.json").read_text()).items():
        found = checkpoint.tensor(weight)
        assert isinstance(found, QuantizedTensor)
        assert found.zeros is not None
        zeros, scales = (a.repeat(found.group_size, 1) for a in (found.zeros, found.scales))
        differences = found.codes.astype(np.float16) - zeros
        theirs = differences * scales
        assert hashlib.sha256(theirs.tobytes()).hexdigest() == entry["sha256"], weight
        exact = differences == found.codes.astype(np.float32) - zeros.astype(np.float32)
        assert 0.5 < exact.mean() < 1
        ours = found.float32().astype(np.float16)
        np.testing.assert_array_equal(ours[exact], theirs[exact])


def test_experts_in_one_tensor_are_held_in_four_bits() -> None:
    decoder = load_model(FIXTURES / APART, create_backend("cpu", threads=1))
    forms = [packed.form for packed in decoder.held.packed]
    assert {form.bits for form in forms if form is not None} == {4}
    moe = decoder.config.moe
    assert moe is not None
    num_experts = decoder.config.num_layers * moe.num_experts
    assert sum(form is not None for form in forms) >= num_experts


@pytest.mark.parametrize("name", FOLDERS)
def test_models_load_and_compute_what_the_values_say(name: str) -> None:
    """Every tensor of the folder has a use; a layer multiplies by the values above."""
    folder = FIXTURES / name
    backend = create_backend("cpu", threads=1)
    decoder = load_model(folder, backend, plan=QuantizationPlan(exact_activations=True))
    config = read_model_config(folder)
    expected = expected_weight_bytes(
        folder, config, config.dtype, QuantizationPlan(), decoder.max_model_len
    )
    # Types and shapes alone do not tell whether all zeros are the same.
    assert abs(expected - decoder.weight_bytes) <= 0.03 * decoder.weight_bytes
    source = open_tensors(folder, config)
    down = source.tensor("model.layers.0.mlp.down_proj.weight").float32()
    x = np.random.default_rng(0).standard_normal((3, down.shape[1]), np.float32)
    key = next(key for key in decoder.held.linears if key[0][0].endswith("0.mlp.down_proj"))
    got = decoder.held.linears[key](x)
    want = x.astype(np.float64) @ down.astype(np.float64).T
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


def test_floats_among_them_stay_floats() -> None:
    checkpoint = opened(FIXTURES / "gptq-w4-g32")
    assert isinstance(checkpoint.tensor("lm_head.weight"), HostTensor)
    assert checkpoint.notices() == ["quantized by gptq: 7 in 4 bits, groups of 32, float16 scales"]
    weight = "model.layers.0.mlp.down_proj.weight"
    assert checkpoint.entry(weight).nbytes == 64 * 96 // 2 + 64 * 3 * 2 + 64 // 2 * 3 + 96 * 4
    checkpoint.tensor(weight)
    checkpoint.release(weight)


@pytest.fixture
def copy(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies a fixture, changed."""

    def make(
        name: str,
        tensors: Callable[[Tensors], None] = lambda _: None,
        **settings: Any,
    ) -> Path:
        folder = tmp_path / name
        shutil.copytree(FIXTURES / name, folder)
        stored = load_file(folder / "model.safetensors")
        tensors(stored)
        save_file(stored, folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] |= settings
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return make


SETTINGS = {
    "gptq-w4-g32": "quantize_config.json",
    "awq-w4-g32": "quant_config.json",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_next_to_the_configuration(copy: Callable[..., Path], name: str) -> None:
    """Without any, a sentence says what is missing; until then all tensors were surplus."""
    folder = copy(name)
    config = json.loads((folder / "config.json").read_text())
    settings = config.pop("quantization_config")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="quantized matrices need their settings") as refused:
        load_model(folder, create_backend("cpu", threads=1))
    assert SETTINGS[name] in str(refused.value)
    del settings["quant_method"]
    (folder / SETTINGS[name]).write_text(json.dumps(settings))
    load_model(folder, create_backend("cpu", threads=1))
    (folder / SETTINGS[name]).write_text("[]")
    with pytest.raises(ModelLoadError, match="must hold an object"):
        load_model(folder, create_backend("cpu", threads=1))


def test_a_model_with_scales_of_its_cache_loads(
    copy: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    def change(tensors: Tensors) -> None:
        for name in ("k_scale", "attn.v_scale", "k_proj.k_scale"):
            tensors[f"model.layers.0.self_attn.{name}"] = torch.ones(1)

    folder = copy("ct-fp8-static", change)
    with caplog.at_level("INFO"):
        load_model(folder, create_backend("cpu", threads=1))
    assert "scales of the KV cache are not used (3)" in caplog.text
    assert "scales of activations" not in caplog.text


DOWN = "model.layers.0.mlp.down_proj."


def test_biases_of_zero_that_autogptq_stores(
    copy: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Files of AutoGPTQ were refused: it stores a bias for every linear, whether it has one."""

    def change(tensors: Tensors) -> None:
        tensors[f"{DOWN}bias"] = torch.zeros(64, dtype=torch.float16)

    folder = copy("gptq-w4-g32", change)
    with caplog.at_level("INFO"):
        load_model(folder, create_backend("cpu", threads=1))
    assert "biases that are 0 are not needed: 1" in caplog.text
    stored = load_file(folder / "model.safetensors")
    stored[f"{DOWN}bias"][3] = 1
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"surplus model\.layers\.0\.mlp\.down_proj\.bias"):
        load_model(folder, create_backend("cpu", threads=1))


def test_a_frozen_checkpoint_is_what_a_compressed_one_is(copy: Callable[..., Path]) -> None:
    """compressed-tensors' ``frozen`` was refused, though its files are the same."""
    folder = copy("ct-w8a8-int8", quantization_status="frozen")
    got = opened(folder).tensor(f"{DOWN}weight").float32()
    want = opened(FIXTURES / "ct-w8a8-int8").tensor(f"{DOWN}weight").float32()
    np.testing.assert_array_equal(got, want)
    with pytest.raises(ModelLoadError, match="quantization_status must be compressed or frozen"):
        opened(copy("ct-fp8-static", quantization_status="calibration"))


def test_one_scale_and_one_zero_of_all(copy: Callable[..., Path]) -> None:
    """``naive-quantized``: a zero of shape (1,) was refused where a scale of it was taken."""

    def change(tensors: Tensors) -> None:
        tensors[f"{DOWN}weight_scale"] = torch.full((1,), 0.5)
        tensors[f"{DOWN}weight_zero_point"] = torch.full((1,), 3, dtype=torch.int8)

    folder = copy("ct-w8a8-int8", change, format="naive-quantized")
    got = opened(folder).tensor(f"{DOWN}weight").float32()
    codes = load_file(folder / "model.safetensors")[f"{DOWN}weight"].numpy()
    np.testing.assert_array_equal(got, (codes.astype(np.float32) - 3) * 0.5)


def test_gpt2_of_gptq_is_stored_as_other_families_are(oracle: Any, tmp_path: Path) -> None:
    """Its matrices of floats are (in, out), and those of GPTQ were taken to be so, too."""
    folder = tmp_path / "gpt2"
    shutil.copytree(oracle("gpt2")[1], folder)
    made, want = {}, {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if ".h." not in name or tensor.dim() < 2:
            made[name] = tensor
            continue
        values = np.ascontiguousarray(tensor.numpy().T)
        rounded_to = quantize(HostTensor(name, "float32", values), create_scheme("int4", 16), 1)
        want[name] = rounded_to.float32()
        parts = store_gptq(rounded_to)
        made |= {
            f"{name.removesuffix('weight')}{part}": torch.tensor(a) for part, a in parts.items()
        }
    save_file(made, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 16}
    (folder / "config.json").write_text(json.dumps(config))
    source = opened(folder)
    assert want and all(np.array_equal(source.tensor(n).float32(), a) for n, a in want.items())
    decoder = load_model(folder, create_backend("cpu", threads=1))
    assert {form.bits for held in decoder.held.packed if (form := held.form)} == {4}


def changed(part: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    def apply(tensors: Tensors) -> None:
        tensors[DOWN + part] = change(tensors[DOWN + part]).contiguous()

    return apply


def without(part: str) -> Any:
    return lambda tensors: tensors.pop(DOWN + part)


def with_nan(scales: torch.Tensor) -> torch.Tensor:
    scales = scales.clone()
    scales.view(-1)[5] = torch.nan
    return scales


BROKEN: dict[str, tuple[str, Any, str]] = {
    "no scales": ("gptq-w4-g32", without("scales"), "down_proj: must have scales"),
    "no codes": ("gptq-w4-g32", without("qweight"), "missing model.layers.0.mlp.down_proj"),
    "transposed": ("gptq-w4-g32", changed("qweight", torch.t), "down_proj"),
    "cut off": ("gptq-w4-g32", changed("qweight", lambda a: a[:-4]), "must have shape"),
    "other type": (
        "gptq-w4-g32",
        changed("qweight", lambda a: a.view(torch.float32)),
        "one of I32",
    ),
    "scales NaN": ("gptq-w4-g32", changed("scales", with_nan), "scales must be finite"),
    "many groups": (
        "gptq-w4-g32",
        changed("scales", lambda a: a.repeat(9, 1)),
        "scales must have shape",
    ),
    "groups beyond": ("gptq-w4-g32", changed("g_idx", lambda a: a + 1), "g_idx must name groups"),
    "groups below": ("gptq-w4-g32", changed("g_idx", lambda a: a - 1), "g_idx must name groups"),
    "uneven groups": (
        "gptq-w4-g32",
        changed("g_idx", lambda a: a.clamp(max=1)),
        "g_idx must give each group 32 inputs",
    ),
    "awq scales": ("awq-w4-g32", changed("scales", with_nan), "scales must be finite"),
    "awq zeros": ("awq-w4-g32", without("qzeros"), "must have qzeros"),
    "hqq axis": ("hqq-w4-g64", changed("axis", lambda a: a * 0), "axis must be 1"),
    "hqq bits": ("hqq-w4-g64", changed("nbits", lambda a: a + 4), "nbits must be 4; got 8"),
    "hqq packing": ("hqq-w4-g64", changed("packing", lambda a: a + 1), "packing must be 4bit_u8"),
    "hqq scales": ("hqq-w4-g64", changed("quant_scale", lambda a: a + 1), "must be false"),
    "hqq shape": ("hqq-w4-g64", changed("shape", lambda a: a * 2), "W_q must have 128 x 192"),
    "hqq sizes": ("hqq-w4-g64", changed("shape", lambda a: -a), "shape must be two sizes"),
    "hqq zeros": ("hqq-w4-g64", changed("zero", with_nan), "zero must be finite"),
    "hqq large": (
        "hqq-w4-g64",
        changed("zero", lambda a: a.float() + 1e6),
        "zero must be numbers that float16 holds",
    ),
    "torchao code": (
        "torchao-int4-g32",
        changed("_weight_qdata", lambda a: a + 1),
        "_weight_qdata must be from -8 to 7",
    ),
    "torchao type": (
        "torchao-int8",
        changed("_weight_qdata", lambda a: a.view(torch.float8_e4m3fn)),
        "_weight_qdata must be one of I8",
    ),
    "torchao scales": (
        "torchao-int4-g32",
        changed("_weight_scale", torch.t),
        "_weight_scale must be .64, groups.",
    ),
    "awq cut off": ("awq-w4-g32", changed("qweight", lambda a: a[:-32]), "down_proj"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_matrices_are_refused_by_name(copy: Callable[..., Path], case: str) -> None:
    name, change, message = BROKEN[case]
    folder = copy(name, change)
    with pytest.raises(ModelLoadError, match=message) as refused:
        load_model(folder, create_backend("cpu", threads=1))
    assert "down_proj" in str(refused.value)


CONTRADICTIONS: dict[str, tuple[str, dict[str, Any], str]] = {
    "other bits": ("gptq-w4-g32", {"bits": 8}, "down_proj"),
    "unknown bits": ("gptq-w4-g32", {"bits": 5}, "bits must be one of 2, 3, 4, 8; got 5"),
    "other groups": ("gptq-w4-g32", {"group_size": 64}, "must have shape"),
    "odd groups": ("gptq-w4-g32", {"group_size": 24}, "group_size must be 16 or a multiple of 32"),
    "other method": ("gptq-w4-g32", {"quant_method": "aqlm"}, "quant_method must be one of gptq"),
    "no such tensors": ("gptq-w4-g32", {"quant_method": "fp8"}, "must have weight_scale; got none"),
    "skipped": (
        "gptq-w4-g32",
        {"dynamic": {"-:.*down_proj": {}}},
        "down_proj: config.json says that it is not quantized",
    ),
    "hqq axis": (
        "hqq-w4-g64",
        {"quant_config": {"weight_quant_params": {"nbits": 4, "axis": 0}}},
        "axis must be 1",
    ),
    "hqq bits": (
        "hqq-w4-g64",
        {"quant_config": {"weight_quant_params": {"nbits": 1}}},
        "nbits must be one of 2, 3, 4, 8",
    ),
    "torchao kind": (
        "torchao-int8",
        {"quant_type": {"default": {"_type": "Float8WeightOnlyConfig"}}},
        "must be Int8WeightOnlyConfig or IntxWeightOnlyConfig",
    ),
    "torchao none": ("torchao-int8", {"quant_type": "int8_weight_only"}, "must be an object"),
    "awq bits": ("awq-w4-g32", {"bits": 8}, "bits must be 4"),
    "awq version": ("awq-w4-g32", {"version": "gemv"}, "version must be gemm"),
    "pattern": ("gptq-w4-g32", {"dynamic": {"+:(": {"bits": 8}}}, "must be regular expressions"),
}


def test_the_file_that_autogptq_names(copy: Callable[..., Path]) -> None:
    folder = copy("gptq-w4-g32")
    want = opened(folder).tensor(f"{DOWN}weight").float32()
    (folder / "model.safetensors").rename(folder / "gptq_model-4bit-32g.safetensors")
    np.testing.assert_array_equal(opened(folder).tensor(f"{DOWN}weight").float32(), want)
    shutil.copy(folder / "gptq_model-4bit-32g.safetensors", folder / "gptq_model-8bit.safetensors")
    with pytest.raises(ModelLoadError, match="must hold model.safetensors"):
        opened(folder)


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_configurations_that_contradict_the_tensors(copy: Callable[..., Path], case: str) -> None:
    name, settings, message = CONTRADICTIONS[case]
    with pytest.raises(ModelLoadError, match=message):
        load_model(copy(name, **settings), create_backend("cpu", threads=1))


def test_rules_of_modules_are_honoured(copy: Callable[..., Path]) -> None:
    """GPTQModel's ``dynamic``: one matrix has 8 bits, another was never quantized."""
    eight = load_file(FIXTURES / "gptq-w8-g32" / "model.safetensors")
    plain = "model.layers.0.mlp.up_proj."

    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith((DOWN, plain))]:
            del tensors[name]
        tensors.update({name: a for name, a in eight.items() if name.startswith(DOWN)})
        tensors[f"{plain}weight"] = torch.ones(96, 64, dtype=torch.float16)

    rules = {"+:.*down_proj": {"bits": 8}, "-:.*up_proj": {}}
    checkpoint = opened(copy("gptq-w4-g32", change, dynamic=rules))
    down, up = (checkpoint.tensor(f"{name}weight") for name in (DOWN, plain))
    assert isinstance(down, QuantizedTensor)
    assert down.bits == 8
    assert isinstance(up, HostTensor)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_headers_and_settings_never_end_otherwise(
    copy: Callable[..., Path], seed: int
) -> None:
    """Fuzz: a part changed in type, shape or content loads or is refused by an error of ours."""
    random = np.random.default_rng(seed)
    name = FOLDERS[seed % len(FOLDERS)]

    def change(tensors: Tensors) -> None:
        for key in random.permutation(sorted(tensors))[:2]:
            tensor = tensors[key]
            kind = random.integers(5)
            if kind == 0:
                del tensors[key]
            elif kind == 1 and tensor.ndim == 2:
                tensors[key] = tensor.T.contiguous()
            elif kind == 2 and tensor.ndim:
                tensors[key] = tensor[: len(tensor) // 2].clone()
            elif tensor.ndim:
                noise = torch.from_numpy(random.integers(0, 256, tensor.nbytes, np.uint8))
                tensors[key] = noise if kind == 3 else noise.view(tensor.dtype).view(tensor.shape)

    folder = copy(name, change)
    try:
        load_model(folder, create_backend("cpu", threads=1))
    except ModelLoadError as refused:
        assert str(refused).startswith("[load]")
