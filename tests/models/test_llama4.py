"""Llama 4 inside the model that reads pictures, and what of its options is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from quire.core.errors import ModelLoadError
from quire.kernels.registry import create_backend
from quire.models.config.config_reader import read_model_config
from tests.lazy_packages import lazy_package
from tests.models.conftest import LLAMA4

transformers = lazy_package("transformers")

VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "vision_output_dim": 32,
    "image_size": 28,
    "patch_size": 14,
    "projector_input_dim": 32,
    "projector_output_dim": 32,
}


def test_the_text_of_the_whole_model(create_driver, tmp_path):
    config = transformers.Llama4Config(text_config=LLAMA4, vision_config=VISION)
    torch.manual_seed(0)
    model = transformers.Llama4ForConditionalGeneration(config).eval().float()
    model.save_pretrained(tmp_path)
    tokens = np.random.default_rng(3).integers(3, 211, 40)
    got = create_driver(tmp_path, create_backend("cpu", threads=1)).step([tokens])
    with torch.no_grad():
        want = model.language_model(torch.from_numpy(tokens)[None]).logits[0].numpy()
    assert np.abs(got - want).max() < 1e-4 * np.abs(want).max()
    read = read_model_config(tmp_path)
    assert (read.architecture, read.vision) == ("Llama4ForConditionalGeneration", None)


@pytest.fixture
def read(tmp_path):
    """Return a function that reads a configuration with fields changed."""

    def read_changed(**changes):
        fields = {**LLAMA4, "architectures": ["Llama4ForCausalLM"], **changes}
        (tmp_path / "config.json").write_text(json.dumps(fields))
        return read_model_config(tmp_path)

    return read_changed


def test_fields_as_the_first_files_have_them(read):
    config = read(attn_temperature_tuning=4, no_rope_layers=[], moe_layers=[0, 2])
    assert config.rope_layers == config.layer_windows == (True, True, False)
    assert config.query_scaling is not None and config.chunked
    assert config.moe.dense_layers == (1,)
    assert [config.has_qk_norm(layer) for layer in range(3)] == [True, True, False]
    assert read(moe_layers=[]).num_moe_layers == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts_per_tok": 2}, "num_experts_per_tok must be 1; got 2"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "must be of type llama3"),
        ({"moe_layers": "all"}, "moe_layers must be a list of integers"),
        ({"layer_types": ["sliding_attention"] * 3}, "layer_types must be 3 of"),
        ({"attention_chunk_size": 0}, "attention_chunk_size must be an integer >= 1"),
        ({"floor_scale": 0}, "floor_scale must be an integer >= 1"),
    ],
)
def test_other_options_are_refused(changes, message, read):
    with pytest.raises(ModelLoadError, match=message):
        read(**changes)
