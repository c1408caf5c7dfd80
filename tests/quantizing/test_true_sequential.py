"""GPTQ inside a layer: matrices that are calibrated after those before them were quantized."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from quire.cli.main import run
from quire.quantization.producers.gptq import quantize_gptq
from quire.quantization.producers.integer_grid import IntegerGrid
from tests.quantizing.stored_values import FEW, files_of, values_of

OPTIONS = ("--method", "gptq", "--group-size", "32", "--bits", "3", *FEW)
STAGES = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)


def test_each_matrix_is_solved_on_what_quantized_ones_before_it_make(
    checkpoint: Callable[..., Path], quantized: Callable[..., Path]
) -> None:
    torch = pytest.importorskip("torch")
    from tests.quantizing.linear_inputs import LinearInputs, calibration_samples

    source = checkpoint("tiny-qwen2")
    found = values_of(quantized(source, *OPTIONS, "--true-sequential"))
    inputs, samples = LinearInputs(source), calibration_samples(source, FEW)
    grid = IntegerGrid(3, 32, symmetric=True)
    for layer in range(2):
        for stage in STAGES:
            seen = inputs.of(f"model.layers.{layer}.", samples)
            for module in stage:
                name = f"model.layers.{layer}.{module}.weight"
                rows, weight = seen[name.removesuffix(".weight")], inputs.weight(name)
                made = quantize_gptq(name, weight, rows.T @ rows, grid).float32()
                # A weight on the border of two codes may take the other one, and others follow.
                assert (made != found[name]).mean() < 0.02, name
                inputs.replace(name, torch.from_numpy(found[name]))


def test_it_changes_the_result_and_layers_are_no_further_off(
    tiny: Path, quantized: Callable[..., Path]
) -> None:
    torch = pytest.importorskip("torch")
    from tests.quantizing.linear_inputs import LinearInputs, calibration_samples

    samples = calibration_samples(tiny, FEW)
    after = "model.layers.1.self_attn.q_proj"
    model = LinearInputs(tiny)
    want = model.of(after, samples)[after]
    errors, stored = [], []
    for options in ((), ("--true-sequential",)):
        out = quantized(tiny, *OPTIONS, "--skip", "model.layers.[!0].*", *options)
        settings = json.loads((out / "config.json").read_text())["quantization_config"]
        assert settings["true_sequential"] is bool(options)
        stored.append(files_of(out)["model.safetensors"])
        for name, values in values_of(out).items():
            if name.startswith("model.layers.0."):
                model.replace(name, torch.from_numpy(values))
        errors.append(np.square(model.of(after, samples)[after] - want).sum())
    assert stored[0] != stored[1]
    assert errors[1] <= errors[0], errors


def test_experts_are_stages_of_their_own(
    checkpoint: Callable[..., Path], quantized: Callable[..., Path]
) -> None:
    source = checkpoint("tiny-mixtral")
    one = files_of(quantized(source, *OPTIONS, "--true-sequential"))
    two = files_of(quantized(source, *OPTIONS, "--true-sequential", "--threads", "2"))
    assert one == two != files_of(quantized(source, *OPTIONS))


def test_methods_that_scale_a_layer_are_refused_next_to_it(
    checkpoint: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[[rule]]\nmatch = "*.down_proj"\nmethod = "awq"\n')
    options = (*OPTIONS, "--true-sequential", "--recipe", str(recipe))
    assert run(["quantize", str(checkpoint()), str(tmp_path / "out"), *options]) == 1
    assert "--true-sequential must come without methods that scale" in capsys.readouterr().err


def test_two_orders_are_refused(
    checkpoint: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (*OPTIONS, "--group-aware", "--act-order")
    assert run(["quantize", str(checkpoint()), str(tmp_path / "out"), *options]) == 1
    assert "--group-aware must come without --act-order" in capsys.readouterr().err


def test_group_aware_order_is_stored_as_no_order(
    checkpoint: Callable[..., Path], quantized: Callable[..., Path]
) -> None:
    out = quantized(checkpoint(), *OPTIONS, "--group-aware")
    settings = json.loads((out / "config.json").read_text())["quantization_config"]
    assert settings["act_group_aware"] and not settings["desc_act"]
    assert files_of(out) != files_of(quantized(checkpoint(), *OPTIONS))
