"""Each method in each format: what is stored, against producers and transformers' own inputs."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from quire import LLM
from quire.checkpoints.checkpoint import Checkpoint
from quire.checkpoints.quantized.quantization_config import read_quantization
from quire.core.sampling_params import SamplingParams
from quire.quantization.producers.gptq import GPTQSettings, quantize_gptq
from quire.quantization.producers.integer_grid import IntegerGrid
from quire.quantization.producers.round_to_nearest import quantize_rtn
from tests.quantizing.stored_values import FEW, files_of, quantized_names, values_of
from tests.sizes import sized
from tools.random_checkpoint import PRESETS

CASES = [
    (method, form, bits)
    for method in ("rtn", "gptq", "awq")
    for form in ("gptq", "compressed-tensors", "awq")
    for bits in ((2, 3, 4, 8) if method == "rtn" else (4,))
    if form != "awq" or bits == 4
]


@pytest.mark.parametrize(("method", "form", "bits"), CASES)
def test_what_is_written_loads(checkpoint, quantized, small, method, form, bits):
    source = checkpoint()
    options = ("--method", method, "--format", form, "--bits", str(bits), "--group-size", "32")
    out = quantized(source, *options, *(() if method == "rtn" else FEW))
    settings = json.loads((out / "config.json").read_text())["quantization_config"]
    assert settings["quant_method"] == form
    assert len(quantized_names(out)) == 3 * 7
    llm = LLM(str(out), **small)
    (output,) = llm.generate(["a text"], SamplingParams(max_tokens=4, temperature=0.0))
    llm.shutdown()
    assert len(output.outputs[0].token_ids) == 4


@pytest.mark.parametrize("form", ["gptq", "compressed-tensors", "awq"])
@pytest.mark.parametrize("preset", ["tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-mixtral"])
def test_rounded_matrices_are_the_producer_s(checkpoint, quantized, preset, form):
    source = checkpoint(preset)
    out = quantized(source, "--method", "rtn", "--format", form, "--group-size", "64")
    before, after = values_of(source), values_of(out)
    assert before.keys() == after.keys()
    names = quantized_names(out)
    assert len(names) == 3 * (4 + 3 * PRESETS[preset].get("num_local_experts", 1))
    grid = IntegerGrid(4, 64, symmetric=form != "awq", search=False)
    for name, values in after.items():
        want = quantize_rtn(name, before[name], grid).float32() if name in names else before[name]
        np.testing.assert_array_equal(values, want, name)


def test_experts_always_on_and_dense_layers_are_rounded_and_gates_are_not(
    checkpoint, quantized, small
):
    source = checkpoint("tiny-qwen2-moe")
    out = quantized(source, "--method", "gptq", "--group-size", "32", *FEW)
    names = quantized_names(out)
    # Attention, four experts and the one always on; the second layer's MLP instead.
    assert len(names) == 2 * (4 + 3 * 5) + (4 + 3)
    assert "model.layers.0.mlp.shared_expert.down_proj.weight" in names
    before, after = values_of(source), values_of(out)
    for gate in ("gate", "shared_expert_gate"):
        name = f"model.layers.2.mlp.{gate}.weight"
        np.testing.assert_array_equal(after[name], before[name])
    llm = LLM(str(out), **small)
    (output,) = llm.generate(["a text"], SamplingParams(max_tokens=4, temperature=0.0))
    llm.shutdown()
    assert len(output.outputs[0].token_ids) == 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_experts_in_one_tensor_become_what_those_of_their_own_do(
    dtype, checkpoint, quantized, tmp_path
):
    """The layout of Transformers 5 as it is in memory, routers under their other name."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    source = checkpoint("tiny-mixtral")
    tensors = load_file(source / "model.safetensors")
    tensors = {name: tensor.to(getattr(torch, dtype)) for name, tensor in tensors.items()}
    joined = dict(tensors)
    for layer in range(3):
        stem, ours = f"model.layers.{layer}.block_sparse_moe", f"model.layers.{layer}.mlp"
        up, down, gate = (
            [joined.pop(f"{stem}.experts.{expert}.w{n}.weight") for expert in range(4)]
            for n in (3, 2, 1)
        )
        pairs = [torch.cat(pair) for pair in zip(gate, up, strict=True)]
        joined[f"{ours}.experts.gate_up_proj"] = torch.stack(pairs)
        joined[f"{ours}.experts.down_proj"] = torch.stack(down)
        joined[f"{ours}.gate.weight"] = joined.pop(f"{stem}.gate.weight")
    folders = tmp_path / "apart", tmp_path / "in-one"
    for folder, stored in zip(folders, (tensors, joined), strict=True):
        shutil.copytree(source, folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"dtype": dtype}))
        save_file(stored, folder / "model.safetensors")
    some = sized(("--skip", "model.layers.[02].*"), ())
    options = ("--method", "gptq", "--group-size", "32", *FEW, *some)
    want, got = (values_of(quantized(folder, *options)) for folder in folders)
    assert len(quantized_names(quantized(folders[1], *options))) == sized(1, 3) * (4 + 3 * 4)
    assert got.keys() == want.keys()
    for name, values in want.items():
        np.testing.assert_array_equal(got[name], values, name)


@pytest.mark.parametrize("options", [(), ("--act-order", "--bits", "3"), ("--asymmetric",)])
@pytest.mark.parametrize("preset", ["tiny-llama", "tiny-qwen2"])
def test_gptq_is_its_definition_on_the_inputs_that_transformers_has(
    checkpoint, quantized, preset, options
):
    """Each layer is given what the quantized layers before it make of the samples."""
    torch = pytest.importorskip("torch")
    from tests.quantizing.linear_inputs import LinearInputs, calibration_samples

    source = checkpoint(preset)
    some = sized(("--skip", "model.layers.2.*"), ())
    found = values_of(
        quantized(source, "--method", "gptq", "--group-size", "32", *options, *FEW, *some)
    )
    inputs, samples = LinearInputs(source), calibration_samples(source, FEW)
    bits = 3 if "3" in options else 4
    grid = IntegerGrid(bits, 32, symmetric="--asymmetric" not in options)
    settings = GPTQSettings(act_order="--act-order" in options)
    for layer in range(sized(2, 3)):
        seen = inputs.of(f"model.layers.{layer}.", samples)
        assert len(seen) == 7
        for module, rows in seen.items():
            name = f"{module}.weight"
            weight = inputs.weight(name)
            made = quantize_gptq(name, weight, rows.T @ rows, grid, settings).float32()
            # A weight on the border of two codes may take the other one, and others follow.
            assert (made != found[name]).mean() < 0.02, name
            inputs.replace(name, torch.from_numpy(found[name]))


def test_experts_see_the_tokens_that_chose_them(checkpoint, quantized):
    """As transformers has it: what a mixture's matrices lose, and less than by rounding."""
    from tests.quantizing.linear_inputs import LinearInputs, calibration_samples

    source = checkpoint("tiny-mixtral")
    many = ("--samples", "32", "--sample-length", "128")
    samples = calibration_samples(source, many)
    # Only the first layer is looked at.
    common = ("--group-size", "64", "--bits", "3", *sized(("--skip", "model.layers.[12].*"), ()))
    made = {
        method: values_of(quantized(source, "--method", method, *options, *common))
        for method, options in {"gptq": many, "rtn": ()}.items()
    }
    inputs = LinearInputs(source)
    name = "model.layers.0.block_sparse_moe.experts.{}.w{}.weight"
    for expert in range(4):
        rows = inputs.of_expert(0, expert, samples)
        assert 500 < len(rows) < 4000
        for matrix in (1, 3):
            weight = values_of(source)[name.format(expert, matrix)]
            errors = {
                method: np.square((found[name.format(expert, matrix)] - weight) @ rows.T).sum()
                for method, found in made.items()
            }
            assert errors["gptq"] < 0.9 * errors["rtn"], (expert, matrix, errors)


@pytest.mark.parametrize("preset", ["tiny-llama", "tiny-mixtral"])
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_two_threads_change_no_byte(checkpoint, quantized, preset, method):
    source = checkpoint(preset)
    # The second layer has inputs that the first has made of the samples.
    some = sized(("--skip", "model.layers.[02].*"), ())
    options = ("--method", method, "--group-size", "32", *FEW, *some)
    one = files_of(quantized(source, *options))
    again, two = (files_of(quantized(source, *options, "--threads", count)) for count in ("1", "2"))
    assert one == again == two


def test_smoothing_is_its_definition_on_the_inputs_that_transformers_has(checkpoint, quantized):
    """Norms and rows before a matrix take over what its columns are multiplied by."""
    pytest.importorskip("torch")
    from tests.quantizing.linear_inputs import LinearInputs, calibration_samples

    source = checkpoint()
    found = values_of(quantized(source, "--method", "smoothquant", "--smoothing", "0.6", *FEW))
    before, prefix = values_of(source), "model.layers.0."
    samples = calibration_samples(source, FEW)
    seen = LinearInputs(source).of(prefix, samples)

    def scales_of(*names):
        weights = [before[f"{prefix}{name}.weight"] for name in names]
        of_weights = np.max([np.abs(weight).max(axis=0) for weight in weights], axis=0)
        return np.abs(seen[f"{prefix}{names[0]}"]).max(axis=0) ** 0.6 / of_weights**0.4

    attention = scales_of("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    mlp, down = scales_of("mlp.gate_proj", "mlp.up_proj"), scales_of("mlp.down_proj")
    changes = {
        "input_layernorm": 1 / attention,
        "self_attn.q_proj": attention,
        "self_attn.k_proj": attention,
        "post_attention_layernorm": 1 / mlp,
        "mlp.gate_proj": mlp,
        "mlp.up_proj": mlp / down[:, None],
        "mlp.down_proj": down,
    }
    for name, change in changes.items():
        want, got = before[f"{prefix}{name}.weight"] * change, found[f"{prefix}{name}.weight"]
        step = np.abs(want).max(axis=-1, keepdims=True) / 127 if want.ndim == 2 else 0
        # Norms are rounded to the type they are stored in, which columns make up for.
        assert (np.abs(got - want) <= step * 0.5 + np.abs(want) * 0.006).all(), name


@pytest.mark.parametrize("form", ["compressed-tensors", "fp8"])
def test_scales_of_inputs_are_of_the_largest_that_transformers_has(checkpoint, quantized, form):
    pytest.importorskip("torch")
    from tests.quantizing.linear_inputs import LinearInputs, calibration_samples

    source = checkpoint()
    options = ("--method", "fp8", "--scales", "tensor", "--static-inputs", "--format", form)
    out = quantized(source, *options, *FEW)
    assert len(quantized_names(out)) == 3 * 7
    stored = Checkpoint(out)
    samples = calibration_samples(source, FEW)
    seen = LinearInputs(source).of("model.layers.0.", samples)
    assert len(seen) == 7
    for module, rows in seen.items():
        scale = stored.tensor(f"{module}.input_scale").float32()
        np.testing.assert_allclose(scale, [np.abs(rows).max() / 448], rtol=1e-4)
    settings = json.loads((out / "config.json").read_text())["quantization_config"]
    if form == "fp8":
        assert settings["activation_scheme"] == "static"
    else:
        inputs = settings["config_groups"]["group_0"]["input_activations"]
        assert inputs["strategy"] == "tensor" and not inputs["dynamic"]


def test_a_reader_finds_the_settings(checkpoint, quantized):
    out = quantized(checkpoint(), "--method", "rtn", "--skip", "*.down_proj")
    quantization = read_quantization(out)
    assert quantization is not None and quantization.method == "gptq"
    assert {name.rsplit(".", 2)[1] for name in quantized_names(out)} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj"
    }  # fmt: skip
