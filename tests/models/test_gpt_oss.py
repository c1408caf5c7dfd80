"""gpt-oss with experts in MXFP4, as its checkpoints have them, against transformers' reading."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from quire.checkpoints.formats.compressed_tensors import pack_halves
from quire.core.errors import WeightMismatchError
from quire.kernels.registry import create_backend
from quire.models.config.config_reader import read_model_config
from quire.models.loader import load_model, open_checkpoint
from quire.models.weight_bytes import expected_weight_bytes
from quire.quantization.producers.float4 import quantize_mxfp4
from quire.quantization.quantization_plan import QuantizationPlan, create_plan
from quire.settings.config import EngineConfig
from tests.lazy_packages import lazy_package

mxfp4 = lazy_package("transformers.integrations.mxfp4")

SETTINGS = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"
    ],
}  # fmt: skip
EXACT = QuantizationPlan(exact_activations=True)


@pytest.fixture(scope="module")
def packed(oracle, tmp_path_factory):
    """Return a folder with experts in MXFP4, and transformers' model of the same values."""
    model, folder = oracle("gpt-oss")
    out = tmp_path_factory.mktemp("mxfp4")
    tensors = load_file(folder / "model.safetensors")
    copy = type(model)(model.config).float().eval()
    copy.load_state_dict(model.state_dict())
    for layer in range(3):
        for part in ("gate_up_proj", "down_proj"):
            name = f"model.layers.{layer}.mlp.experts.{part}"
            blocks, scales = pack(tensors.pop(name))
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            values = mxfp4.convert_moe_packed_tensors(
                torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32
            )
            getattr(copy.model.layers[layer].mlp.experts, part).data.copy_(values)
    save_file(tensors, out / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"quantization_config": SETTINGS}))
    return copy, out


def pack(experts):
    """Return blocks (E, rows, G, 16) and scales (E, rows, G) of matrices (E, in, out)."""
    found = [quantize_mxfp4("w", np.ascontiguousarray(expert.T)) for expert in experts]
    shape = found[0].scales.shape
    blocks = np.stack([pack_halves(each.codes).reshape(*shape, 16) for each in found])
    return blocks, np.stack([each.scales for each in found])


def test_logits_of_packed_experts(packed, backend, create_driver, random_prompts, oracle_logits):
    model, folder = packed
    driver = create_driver(folder, backend, plan=EXACT)
    (prompt,) = random_prompts([33])
    got, want = driver.step([np.array(prompt)]), oracle_logits(model, prompt)
    assert np.abs(got - want).max() / np.abs(want).max() < 1e-4


def test_matrices_stay_packed(packed):
    _, folder = packed
    plan = create_plan(EngineConfig.from_keywords(model=str(folder)).model)
    expected = expected_weight_bytes(folder, read_model_config(folder), "float32", plan, 100)
    loaded = load_model(folder, create_backend("cpu", threads=1), plan=plan, max_model_len=100)
    assert loaded.weight_bytes == expected
    name = "model.layers.0.mlp.experts.1.up_proj.weight"
    entry = open_checkpoint(folder, "float32", None).tensors.entry(name)
    assert (entry.form.bits, entry.form.group_size, entry.shape) == (4, 32, (96, 64))
    assert entry.nbytes == 96 * 64 * 17 // 32


def test_a_scale_that_is_no_number_is_refused(packed, tmp_path):
    _, folder = packed
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.2.mlp.experts.down_proj_scales"][3, 5, 1] = 255
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(WeightMismatchError, match=r"experts\.3\.down_proj: weight_scale must have"):
        load_model(tmp_path, create_backend("reference", threads=1))


def test_scales_without_blocks_are_refused(packed, tmp_path):
    _, folder = packed
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.2.mlp.experts.down_proj_blocks"]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(WeightMismatchError, match=r"missing .*experts\.0\.down_proj\.weight"):
        load_model(tmp_path, create_backend("reference", threads=1))
