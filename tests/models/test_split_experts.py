"""Experts that are stored as one tensor: what each gets, and what is refused."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from quire.core.errors import WeightMismatchError
from quire.kernels.registry import create_backend
from quire.models.loader import load_model, open_checkpoint


@pytest.mark.parametrize("name", ["qwen2-moe", "qwen3-moe"])
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
