"""Experts that are stored as one tensor: what each gets, and what is refused."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from quire.checkpoints.formats.compressed_tensors import pack_halves
from quire.core.errors import WeightMismatchError
from quire.kernels.registry import create_backend
from quire.models.loader import load_model, open_checkpoint
from quire.quantization.producers.float4 import quantize_mxfp4
from quire.quantization.quantization_plan import QuantizationPlan
from tests.lazy_packages import lazy_package

mxfp4 = lazy_package("transformers.integrations.mxfp4")


@pytest.mark.parametrize(
    "name",
    [
        "mixtral", "qwen2-moe", "qwen3-moe", "olmoe", "dots1", "glm4-moe", "granite-moe",
        "granite-moe-shared",
    ],
)  # fmt: skip
def test_the_layout_of_transformers_5_is_the_same_model(
    name, oracle, create_driver, tmp_path, random_prompts
):
    model, folder = oracle(name)
    model.save_pretrained(tmp_path, save_original_format=False)
    assert any(each.endswith("experts.gate_up_proj") for each in names(tmp_path))
    assert not any(each.endswith("experts.gate_up_proj") for each in names(folder))
    backend = create_backend("cpu", threads=1)
    (prompt,) = random_prompts([20])
    folders = folder, tmp_path
    want, got = (create_driver(each, backend).step([np.array(prompt)]) for each in folders)
    assert np.array_equal(got, want)


def test_each_expert_is_a_tensor(oracle):
    model, folder = oracle("granite-moe")
    tensors = open_checkpoint(folder, "float32", None).tensors
    moe = model.model.layers[1].block_sparse_moe
    stem = "model.layers.1.block_sparse_moe.experts"
    for expert in range(4):
        gate, up = moe.experts.gate_up_proj[expert].detach().chunk(2)
        down = moe.experts.down_proj[expert].detach()
        for part, want in (("gate_proj", gate), ("up_proj", up), ("down_proj", down)):
            name = f"{stem}.{expert}.{part}.weight"
            np.testing.assert_array_equal(tensors.tensor(name).array, want.numpy())
            assert tensors.entry(name).shape == tuple(want.shape)
            assert tensors.entry(name).nbytes == want.numel() * 4
            tensors.release(name)
    assert not any("input_linear" in name for name in tensors.names)


@pytest.mark.parametrize("change", ["fewer-experts", "odd-rows", "two-sizes", "one-is-missing"])
def test_other_shapes_are_refused(change, oracle, tmp_path):
    _, folder = oracle("granite-moe")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.2.block_sparse_moe.input_linear.weight"
    stored = tensors.pop(name)
    if change != "one-is-missing":
        cut = {"fewer-experts": stored[1:], "odd-rows": stored[:, 1:], "two-sizes": stored[0]}
        tensors[name] = np.ascontiguousarray(cut[change])
    save_file(tensors, tmp_path / "model.safetensors")
    message = "missing .*experts.0.gate_proj" if change == "one-is-missing" else f"{name} must have"
    with pytest.raises(WeightMismatchError, match=message):
        load_model(tmp_path, create_backend("reference", threads=1))


def test_rows_that_are_not_those_of_the_configuration_are_refused(oracle, tmp_path):
    _, folder = oracle("granite-moe")
    config = json.loads((folder / "config.json").read_text()) | {"intermediate_size": 48}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(load_file(folder / "model.safetensors"), tmp_path / "model.safetensors")
    with pytest.raises(WeightMismatchError, match=r"gate_proj.weight must have shape \(48, 64\)"):
        load_model(tmp_path, create_backend("reference", threads=1))


def names(folder):
    with safe_open(folder / "model.safetensors", "numpy") as file:
        return list(file.keys())


def test_experts_in_mxfp4_are_those_that_transformers_reads(oracle, create_driver, tmp_path):
    """Blocks and scales of all experts, as gpt-oss has them, of another family's matrices."""
    model, _ = oracle("qwen3-moe")
    wide = type(model)(type(model.config)(**model.config.to_dict() | {"moe_intermediate_size": 32}))
    wide.float().eval().save_pretrained(tmp_path, save_original_format=False)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for part in ("gate_up_proj", "down_proj"):
        name = f"model.layers.1.mlp.experts.{part}"
        found = [quantize_mxfp4("w", expert) for expert in tensors.pop(name)]
        scales = np.stack([each.scales for each in found])
        blocks = np.stack([pack_halves(each.codes) for each in found]).reshape(*scales.shape, 16)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        given = torch.from_numpy(blocks), torch.from_numpy(scales)
        values = mxfp4.convert_moe_packed_tensors(*given, dtype=torch.float32).transpose(1, 2)
        getattr(wide.model.layers[1].mlp.experts, part).data.copy_(values)
    save_file(tensors, file)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}})
    )
    entry = open_checkpoint(tmp_path, "float32", None).tensors.entry(
        "model.layers.1.mlp.experts.2.up_proj.weight"
    )
    assert (entry.form.bits, entry.shape, entry.nbytes) == (4, (32, 64), 32 * 64 * 17 // 32)
    exact = QuantizationPlan(exact_activations=True)
    driver = create_driver(tmp_path, create_backend("cpu", threads=1), plan=exact)
    prompt = np.arange(3, 30)
    with torch.no_grad():
        want = wide(torch.from_numpy(prompt)[None]).logits[0].numpy()
    assert np.abs(driver.step([prompt]) - want).max() / np.abs(want).max() < 1e-4
