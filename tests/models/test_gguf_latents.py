"""GGUF files of DeepSeek's models: one matrix for keys and values or two, blocks that draft."""

from __future__ import annotations

import numpy as np
import pytest

from quire.checkpoints.gguf.gguf_file import GgufFile
from quire.checkpoints.gguf.gguf_layouts import LAYOUTS
from quire.checkpoints.gguf.gguf_types import dequantize
from quire.checkpoints.gguf.gguf_writer import TensorPlan, write_gguf
from quire.core.errors import ModelLoadError, WeightMismatchError
from quire.kernels.registry import create_backend
from quire.models.config.config_reader import read_model_config
from quire.models.gguf.gguf_export import GgufExport
from quire.models.loader import load_model
from quire.quantization.quantization_plan import QuantizationPlan
from tests.models.gguf_settings import SETTINGS

TOKENS = np.arange(3, 43)
#: Whose matrices are whole blocks of 32.
WHOLE = {
    "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "q_lora_rank": 32,
    "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
}  # fmt: skip


@pytest.fixture(scope="module")
def reference():
    return create_backend("reference", threads=1)


@pytest.fixture(scope="module")
def folder(create_oracle, tmp_path_factory):
    """Return the folder of a DeepSeek V3."""
    family, settings = SETTINGS["deepseek-v3"]
    path = tmp_path_factory.mktemp("deepseek")
    create_oracle(family, settings | WHOLE).save_pretrained(path)
    return path


@pytest.fixture
def write(folder, tmp_path):
    """Return a function that writes a file of it; ``change`` may edit the export."""

    def convert(type_name="F32", change=lambda exported: None):
        exported = GgufExport(folder, type_name)
        change(exported)
        path = tmp_path / f"{type_name}.gguf"
        write_gguf(path, exported.metadata, exported.tensors)
        return path

    return convert


def floats(name, values):
    data = np.ascontiguousarray(values, np.float32)
    return TensorPlan(name, LAYOUTS["F32"], data.shape, [data.tobytes()].__iter__)


def older(exported):
    """Change an export into a file from before latents were cached."""
    config, plans = exported.config, {plan.name: plan for plan in exported.tensors}
    latent, heads = config.latent, config.num_heads
    for layer in range(config.num_layers):
        parts = []
        for kind in "kv":
            plan = plans.pop(f"blk.{layer}.attn_{kind}_b.weight")
            stored = b"".join(plan.chunks())
            parts.append(np.frombuffer(stored, np.float32).reshape(plan.shape))
        joined = np.concatenate([parts[0].swapaxes(1, 2), parts[1]], axis=1)
        name = f"blk.{layer}.attn_kv_b.weight"
        plans[name] = floats(name, joined.reshape(-1, latent.rank))
    exported.tensors[:] = plans.values()
    values = exported.metadata
    values["deepseek2.attention.head_count_kv"] = heads
    values["deepseek2.attention.key_length"] = values.pop("deepseek2.attention.key_length_mla")
    values["deepseek2.attention.value_length"] = values.pop("deepseek2.attention.value_length_mla")


def test_keys_and_values_in_one_matrix(write, create_driver, reference):
    want = create_driver(write(), reference).step([TOKENS])
    path = write(change=older)
    assert "blk.0.attn_k_b.weight" not in GgufFile(path).tensors
    assert np.array_equal(create_driver(path, reference).step([TOKENS]), want)


@pytest.mark.parametrize("type_name", ["F16", "BF16", "Q8_0", "Q4_K_M"])
def test_values_are_those_of_the_blocks(
    type_name, write, create_driver, reference, backend, tmp_path
):
    """Quantized keys' blocks lie across those of the joined matrix, which becomes floats."""
    path, plain = write(type_name), tmp_path / "plain.gguf"
    file, plans = GgufFile(path), []
    if type_name == "Q8_0":
        assert file.tensors["blk.1.attn_k_b.weight"].layout.name == "Q8_0"
    for name, tensor in file.tensors.items():
        values = dequantize(tensor.layout.name, np.frombuffer(file.data(name), np.uint8)[None])
        plans.append(floats(name, values.reshape(tensor.shape)))
    write_gguf(plain, file.metadata, plans)
    want = create_driver(plain, reference, dtype="float32").step([TOKENS])
    got = create_driver(path, reference, dtype="float32").step([TOKENS])
    assert np.array_equal(got, want)
    # Rounded inputs would choose other experts.
    plan = QuantizationPlan(exact_activations=type_name.startswith("Q"))
    held = create_driver(path, backend, dtype="float32", plan=plan).step([TOKENS])
    assert np.abs(held - want).max() < 2e-3 * np.abs(want).max()


def with_drafting_block(exported):
    """Add a block as files have it that draft by one: a layer, and what joins two inputs."""
    added = []
    for plan in exported.tensors:
        if plan.name.startswith("blk.2."):
            name = plan.name.replace("blk.2.", "blk.3.")
            added.append(TensorPlan(name, plan.layout, plan.shape, plan.chunks))
    added.append(floats("blk.3.nextn.eh_proj.weight", np.zeros((64, 128))))
    exported.tensors += added
    exported.metadata["deepseek2.block_count"] = 4
    exported.metadata["deepseek2.nextn_predict_layers"] = 1


def test_blocks_that_draft_are_left_out(write, create_driver, reference, caplog):
    want = create_driver(write(), reference).step([TOKENS])
    with caplog.at_level("INFO"):
        driver = create_driver(write(change=with_drafting_block), reference)
    assert driver.decoder.config.num_layers == 3
    assert "tensors that draft further tokens are not loaded: " in caplog.text
    assert np.array_equal(driver.step([TOKENS]), want)


def set_value(key, value):
    return lambda exported: exported.metadata.__setitem__(f"deepseek2.{key}", value)


REFUSED = {
    "attention.key_length_mla": (16, "key_length_mla must be greater than rope.dimension_count"),
    "attention.head_count_kv": (4, "head_count_kv must be 1"),
    "attention.key_length": (64, "key_length must be 80"),
    "attention.value_length": (32, "value_length must be 64"),
    "expert_gating_func": (3, "expert_gating_func is an option that Quire does not implement"),
    "nextn_predict_layers": (3, "block_count must be an integer >= 1"),
    "rope.scaling.yarn_log_multiplier": (-0.5, "must be a number >= 0"),
    "rope.scaling.attn_factor": (2.0, "attn_factor must be 1"),
    "expert_used_count": (12, r"the experts of topk_group \(2\) groups"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_metadata_out_of_range_is_refused(key, write):
    value, message = REFUSED[key]
    with pytest.raises(ModelLoadError, match=message):
        read_model_config(write(change=set_value(key, value)))


def test_a_matrix_of_another_shape_or_none(write, reference):
    def cut(exported):
        (plan,) = (p for p in exported.tensors if p.name == "blk.1.attn_v_b.weight")
        exported.tensors[exported.tensors.index(plan)] = floats(plan.name, np.zeros((4, 16, 64)))

    def drop(exported):
        exported.tensors[:] = [p for p in exported.tensors if p.name != "blk.1.attn_k_b.weight"]

    with pytest.raises(WeightMismatchError, match=r"blk.1.attn_v_b.weight must have shape \(4, 32"):
        load_model(write(change=cut), reference)
    with pytest.raises(WeightMismatchError, match=r"attn_k_b.weight must have .* got none"):
        load_model(write(change=drop), reference)


def test_groups_that_llama_cpp_counts_otherwise(create_oracle, tmp_path, caplog):
    create_oracle(*SETTINGS["deepseek-v2"]).save_pretrained(tmp_path)
    GgufExport(tmp_path, "F32")
    assert "llama.cpp lets groups count as two experts" in caplog.text
