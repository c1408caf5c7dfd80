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

from quire.core.config import ModelOptions
from quire.core.errors import ModelLoadError
from quire.kernels.activation_scheme import ActivationScheme
from quire.kernels.quantized_tensor import QuantizedTensor
from quire.kernels.registry import create_backend
from quire.models.checkpoint import Checkpoint
from quire.models.loader import load_model
from quire.models.quantization_config import read_quantization
from quire.models.quantized_checkpoint import QuantizedCheckpoint
from quire.quantization.plan import QuantizationPlan, create_plan
from tests.models.conftest import Driver

FIXTURES = Path(__file__).parents[1] / "fixtures" / "quantized"
DOWN = "model.layers.0.mlp.down_proj"
Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def changed(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies a fixture with other inputs, and scales of them stored."""

    def make(name: str, inputs: dict[str, Any], **stored: torch.Tensor) -> Path:
        folder = tmp_path / name
        shutil.copytree(FIXTURES / name, folder)
        config = json.loads((folder / "config.json").read_text())
        settings = config["quantization_config"]
        if "config_groups" in settings:
            settings["config_groups"]["group_0"]["input_activations"] |= inputs
        else:
            settings |= inputs
        (folder / "config.json").write_text(json.dumps(config))
        tensors = load_file(folder / "model.safetensors")
        for module in [
            key.removesuffix(".weight_scale") for key in tensors if "weight_scale" in key
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
    assert bool(told) == (want is None or case == "one for a batch")
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
    # Products of E4M3 weights are floats': inputs that nobody asks to round stay what they are.
    np.testing.assert_array_equal(logits("int8"), exact)
    assert np.abs(logits("checkpoint") - exact).max() > 1e-3


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
    "scheme": ("fp8-block-32", {"activation_scheme": "none"}, {}, "must be dynamic or static"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_contradicts_itself_is_refused(changed: Callable[..., Path], case: str) -> None:
    name, inputs, stored, message = REFUSED[case]
    with pytest.raises(ModelLoadError, match=message):
        load_model(changed(name, inputs, **stored), create_backend("cpu", threads=1))


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
