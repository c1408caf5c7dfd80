"""Checkpoints that say how inputs are rounded: which rule each matrix gets, and what is refused."""

from __future__ import annotations

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
from quire.checkpoints.quantized.quantization_config import read_quantization
from quire.checkpoints.quantized.quantized_checkpoint import QuantizedCheckpoint
from quire.core.errors import ModelLoadError
from quire.kernels.matrices.activation_scheme import ActivationScheme, round_rows
from quire.kernels.matrices.quantized_tensor import QuantizedTensor
from quire.kernels.registry import create_backend
from quire.models.loader import load_model
from quire.quantization.quantization_plan import QuantizationPlan, create_plan
from quire.settings.config import ModelOptions
from tests.models.conftest import Driver

FIXTURES = Path(__file__).parents[1] / "fixtures" / "quantized"
DOWN = "model.layers.0.mlp.down_proj"
Change = Callable[[dict[str, Any]], None]
#: A fixture of compressed-tensors under the names that modelopt gives its parts.
MODELOPT = "modelopt-nvfp4"


def modelopt_settings() -> dict[str, Any]:
    four = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    group = {"input_activations": four, "weights": four, "targets": ["Linear"]}
    return {
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quant_algo": "NVFP4",
        "producer": {"name": "modelopt", "version": "0.29.0"},
        "quant_method": "modelopt",
    }


def modelopt_tensors(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Their factors multiply where compressed-tensors' divide."""
    made = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if part == "weight_packed":
            made[f"{module}.weight"] = tensor
        elif part == "weight_global_scale":
            made[f"{module}.weight_scale_2"] = 1 / tensor
        elif part == "input_global_scale":
            made[f"{module}.input_scale"] = 1 / tensor
        else:
            made[name] = tensor
    return made


@pytest.fixture
def changed(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies a fixture with other inputs, and scales of them stored."""

    def make(name: str, inputs: dict[str, Any], **stored: torch.Tensor) -> Path:
        folder = tmp_path / name
        shutil.copytree(FIXTURES / ("ct-nvfp4" if name == MODELOPT else name), folder)
        config = json.loads((folder / "config.json").read_text())
        settings = config["quantization_config"]
        tensors = load_file(folder / "model.safetensors")
        if name == MODELOPT:
            config["quantization_config"] = modelopt_settings()
            tensors = modelopt_tensors(tensors)
        elif "config_groups" in settings:
            group = settings["config_groups"]["group_0"]
            group["input_activations"] = (group["input_activations"] or {}) | inputs
        else:
            settings |= inputs
        (folder / "config.json").write_text(json.dumps(config))
        for module in [
            key.removesuffix(".weight_scale") for key in tensors if key.endswith(".weight_scale")
        ]:
            tensors |= {f"{module}.{part}": value.clone() for part, value in stored.items()}
        save_file(tensors, folder / "model.safetensors")
        return folder

    return make


def opened(folder: Path) -> QuantizedCheckpoint:
    quantization = read_quantization(folder)
    assert quantization is not None
    return QuantizedCheckpoint(Checkpoint(folder), quantization)


def rule(folder: Path) -> ActivationScheme | None:
    """Return the rule of a matrix, as it is read and as it is planned."""
    checkpoint = opened(folder)
    found = checkpoint.tensor(f"{DOWN}.weight")
    assert isinstance(found, QuantizedTensor)
    assert checkpoint.entry(f"{DOWN}.weight").form.activations == found.activations
    return found.activations


STATIC = {"strategy": "tensor", "dynamic": False}
FLOATS = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
RULES: dict[str, tuple[str, dict[str, Any], dict[str, torch.Tensor], ActivationScheme | None]] = {
    "bytes by token": ("ct-w8a8-int8", {}, {}, ActivationScheme("int8")),
    "one for a batch": (
        "ct-w8a8-int8",
        {"strategy": "tensor"},
        {},
        ActivationScheme("int8"),
    ),
    "bytes with zeros": (
        "ct-w8a8-int8",
        {"symmetric": False},
        {},
        ActivationScheme("int8", has_zeros=True),
    ),
    "stored": (
        "ct-w8a8-int8",
        STATIC,
        {"input_scale": torch.tensor([0.25])},
        ActivationScheme("int8", scale=0.25),
    ),
    "stored with zeros": (
        "ct-w8a8-int8",
        STATIC | {"symmetric": False},
        {"input_scale": torch.tensor(0.25), "input_zero_point": torch.tensor(-9).char()},
        ActivationScheme("int8", scale=0.25, zero=-9, has_zeros=True),
    ),
    "E4M3 by token": ("ct-fp8-dynamic", {}, {}, ActivationScheme("e4m3")),
    "E4M3 stored": (
        "ct-fp8-static",
        {},
        {"input_scale": torch.tensor([0.5])},
        ActivationScheme("e4m3", scale=0.5),
    ),
    "E4M3 in groups": ("ct-fp8-block", {}, {}, ActivationScheme("e4m3", 128)),
    "DeepSeek's": ("fp8-block-32", {}, {}, ActivationScheme("e4m3", 32)),
    "four bits": (
        "ct-nvfp4",
        {},
        {"input_global_scale": torch.tensor([64.0])},
        ActivationScheme("e2m1", 16, scale=64.0),
    ),
    "four bits by powers": (
        "ct-mxfp4",
        {},
        {},
        ActivationScheme("e2m1", 32, has_power_factors=True),
    ),
    "eight bits by powers": (
        "ct-mxfp8",
        {},
        {},
        ActivationScheme("e4m3", 32, has_power_factors=True),
    ),
    "modelopt's four bits": (
        MODELOPT,
        {},
        {"input_scale": torch.tensor(1 / 64)},
        ActivationScheme("e2m1", 16, scale=64.0),
    ),
    "E4M3 with integers": ("ct-w4a16-g32", FLOATS, {}, ActivationScheme("e4m3")),
    "E4M3 in groups with integers": (
        "ct-w4a16-g32-asymmetric",
        FLOATS | {"strategy": "group", "group_size": 32},
        {},
        ActivationScheme("e4m3", 32),
    ),
    "E4M3 stored with integers": (
        "ct-w8a8-int8",
        FLOATS | STATIC,
        {"input_scale": torch.tensor([0.5])},
        ActivationScheme("e4m3", scale=0.5),
    ),
    "bytes of E2M1": ("ct-nvfp4", {"num_bits": 8}, {}, None),
    "in columns": ("ct-w8a8-int8", {"strategy": "channel"}, {}, None),
    "bytes of E4M3": ("ct-fp8-dynamic", {"type": "int"}, {}, None),
    "outliers": ("bnb-int8", {}, {}, ActivationScheme("outliers", threshold=6.0)),
    "other outliers": (
        "bnb-int8",
        {"llm_int8_threshold": 3.5},
        {},
        ActivationScheme("outliers", threshold=3.5),
    ),
    "no outliers": (
        "bnb-int8",
        {"llm_int8_threshold": 0.0},
        {},
        ActivationScheme("outliers", threshold=float("inf")),
    ),
}


@pytest.mark.parametrize("case", RULES)
def test_the_rule_is_the_checkpoints(changed: Callable[..., Path], case: str) -> None:
    name, inputs, stored, want = RULES[case]
    folder = changed(name, inputs, **stored)
    assert rule(folder) == want
    told = [text for text in opened(folder).notices()[1:] if "activations" in text]
    assert bool(told) == (want is None or case == "one for a batch" or "integers" in case)
    load_model(folder, create_backend("cpu", threads=1))


@pytest.mark.parametrize("case", [case for case in RULES if RULES[case][3]])
def test_logits_are_those_of_the_rounded_reference(changed: Callable[..., Path], case: str) -> None:
    """Both round the same inputs; a float's last bit moves few of them to the next code.

    Stored scales are large enough for all inputs here.
    """
    name, inputs, stored, _ = RULES[case]
    if "input_scale" in stored:
        stored = stored | {"input_scale": stored["input_scale"] * 0 + 0.05}
    folder = changed(name, inputs, **stored)
    prompt = [np.arange(24) * 7 % 32]

    def logits(device: str, exact: bool = False) -> np.ndarray:
        backend = create_backend(device, threads=1)
        plan = QuantizationPlan(exact_activations=exact)
        return Driver(folder, backend, dtype="float32", plan=plan).step(prompt)

    want, exact = logits("reference"), logits("reference", True)
    rounding = np.sqrt(np.mean((want - exact) ** 2))
    most = 0.5 if "four bits" in case else 0.1
    assert 0 < rounding < most * np.sqrt(np.mean(exact**2))
    assert np.sqrt(np.mean((logits("cpu") - want) ** 2)) <= 0.3 * rounding


def test_the_engines_own_groups_may_be_asked_for() -> None:
    folder, prompt = FIXTURES / "ct-fp8-dynamic", [np.arange(24) * 7 % 32]

    def logits(activations: str, device: str = "cpu") -> np.ndarray:
        plan = create_plan(ModelOptions(model="", activations=activations))
        backend = create_backend(device, threads=1)
        return Driver(folder, backend, dtype="float32", plan=plan).step(prompt)

    exact = logits("fp32")
    # Inputs of E4M3 weights that are not to be rounded are those of bfloat16 weights, at the worst.
    own, asked = (np.sqrt(np.mean((logits(a) - exact) ** 2)) for a in ("int8", "checkpoint"))
    assert own <= 2**-8 * np.sqrt(np.mean(exact**2))
    assert asked > 3 * own


REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, torch.Tensor], str]] = {
    "no scale": ("ct-w8a8-int8", STATIC, {}, "must have input_scale"),
    "NaN": ("ct-fp8-static", {}, {"input_scale": torch.tensor([torch.nan])}, "must be > 0"),
    "negative": ("ct-fp8-static", {}, {"input_scale": torch.tensor([-1.0])}, "must be > 0"),
    "infinite": ("ct-fp8-static", {}, {"input_scale": torch.tensor([torch.inf])}, "at most 1e"),
    "two": ("ct-fp8-static", {}, {"input_scale": torch.ones(2)}, "must have shape"),
    "type": ("ct-fp8-static", {}, {"input_scale": torch.ones(1).int()}, "one of F32"),
    "zeros": (
        "ct-w8a8-int8",
        STATIC | {"symmetric": False},
        {"input_scale": torch.ones(1)},
        "must have input_zero_point",
    ),
    "threshold": ("bnb-int8", {"llm_int8_threshold": -1.0}, {}, "llm_int8_threshold"),
    "modelopt's 0": (MODELOPT, {}, {"input_scale": torch.tensor(0.0)}, "must be > 1e-30"),
    "modelopt's NaN": (MODELOPT, {}, {"input_scale": torch.tensor(torch.nan)}, "must be > 1e-30"),
    "modelopt's least": (MODELOPT, {}, {"input_scale": torch.tensor(1e-31)}, "must be > 1e-30"),
    "modelopt's two": (MODELOPT, {}, {"input_scale": torch.ones(2)}, "must have shape"),
    "modelopt's type": (MODELOPT, {}, {"input_scale": torch.ones(1).char()}, "one of F32"),
    "size of groups": (
        "ct-w4a16-g32",
        FLOATS | {"group_size": "x", "strategy": "group"},
        {},
        "group_size must be an integer",
    ),
    "scheme": ("fp8-block-32", {"activation_scheme": "none"}, {}, "must be dynamic or static"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_contradicts_itself_is_refused(changed: Callable[..., Path], case: str) -> None:
    name, inputs, stored, message = REFUSED[case]
    with pytest.raises(ModelLoadError, match=message):
        load_model(changed(name, inputs, **stored), create_backend("cpu", threads=1))


def literally_modelopt(x: np.ndarray, scale: np.float32) -> np.ndarray:
    """Round rows as modelopt simulates it (``fp4_fake_quant_block``), an input at a time."""
    made = np.zeros_like(x)
    for row, begin in np.ndindex(len(x), x.shape[1] // 16):
        block = x[row, 16 * begin : 16 * begin + 16]
        most = np.abs(block).max() / (np.float32(6) * scale)
        number = torch.tensor(min(most, np.float32(448))).to(torch.float8_e4m3fn).float().numpy()
        step = np.float32(number * scale)
        step = step if step >= 1e-5 else np.float32(1)
        for column, value in enumerate(block):
            size = abs(value) / step
            ends = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
            ties_go_up = (False, True, False, True, False, True, False)
            place = sum(
                size > end or (size == end and up) for end, up in zip(ends, ties_go_up, strict=True)
            )
            code = np.float32((0, 0.5, 1, 1.5, 2, 3, 4, 6)[place])
            made[row, 16 * begin + column] = np.copysign(code * step, value)
    return made


@pytest.mark.parametrize("scale", [1 / 64, 0.0137])
def test_inputs_are_rounded_as_modelopt_simulates(
    changed: Callable[..., Path], scale: float
) -> None:
    """It divides where the rule multiplies: equal where 1 / scale is exact, else nearly always."""
    found = rule(changed(MODELOPT, {}, input_scale=torch.tensor(scale)))
    assert found is not None
    x = np.random.default_rng(0).normal(0, 8, (16, 96)).astype(np.float32)
    x[:2] *= np.float32(60)  # beyond what the scale was made for
    x[2, :16], x[3] = 0, np.round(x[3] * 4) / 4
    want, got = literally_modelopt(x, np.float32(scale)), round_rows(found, x).float32()
    if scale == 1 / 64:
        np.testing.assert_array_equal(got, want)
    assert (np.abs(got - want) > 1e-6 * np.abs(want)).mean() < 0.01


def test_without_a_stored_scale_modelopts_weights_are_alone(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    shutil.copytree(FIXTURES / "ct-nvfp4", folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = modelopt_settings()
    (folder / "config.json").write_text(json.dumps(config))
    tensors = modelopt_tensors(load_file(folder / "model.safetensors"))
    kept = {name: part for name, part in tensors.items() if not name.endswith("input_scale")}
    save_file(kept, folder / "model.safetensors")
    assert rule(folder) is None
    load_model(folder, create_backend("cpu", threads=1))


def test_packed_weights_keep_the_rule(changed: Callable[..., Path], tmp_path: Path) -> None:
    name, inputs, stored, _ = RULES["stored with zeros"]
    folder = changed(name, inputs, **stored)
    prompt = [np.arange(24) * 7 % 32]

    def logits() -> np.ndarray:
        backend = create_backend("cpu", threads=1)
        return Driver(folder, backend, packed_weights_cache=str(tmp_path / "packed")).step(prompt)

    first = logits()
    assert len(list((tmp_path / "packed").glob("*.packed"))) == 1
    np.testing.assert_array_equal(logits(), first)
