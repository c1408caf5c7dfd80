"""Whether a model is likely to fit, told by the size of its file, against what engines take."""

import json

import pytest

from quire.models.config.config_reader import read_model_config
from quire.planner.memory_fit import CONTEXT, fit_file, likely_bytes, room_in
from quire.runner.memory.memory_plan import model_demand
from quire.settings.config import EngineConfig
from quire.settings.resolve import resolve
from quire.store.named_models import catalogue, largest_in_family, named_model
from quire.system.machine import Machine
from tools.random_checkpoint import PRESETS


def test_the_largest_of_a_family_that_fits():
    family = named_model("qwen3")
    models = {n: largest_in_family(family, room_in(n * 10**9)) for n in (0, 1, 2, 4, 64)}
    chosen = {gigabytes: model and model.name for gigabytes, model in models.items()}
    assert chosen == {
        0: None, 1: None, 2: "qwen3:0.6b-q8_0", 4: "qwen3:4b-instruct-2507", 64: "qwen3:8b",
    }  # fmt: skip
    assert all(not fit_file(model.nbytes, 10**8).fits for model in catalogue().values())


def shape(preset, **fields):
    return PRESETS[preset] | {"torch_dtype": "bfloat16"} | fields


@pytest.mark.parametrize(
    ("config", "megabytes"),
    [
        (shape("llama-3.2-1b", vocab_size=49152, hidden_size=576, num_hidden_layers=30, head_dim=64,
               num_attention_heads=9, num_key_value_heads=3, intermediate_size=1536), 98),
        (shape("qwen3-0.6b"), 397),
        (shape("llama-3.2-1b"), 808),
        (shape("qwen3-0.6b", hidden_size=4096, num_hidden_layers=36, num_attention_heads=32,
               intermediate_size=12288), 5027),
    ],
)  # fmt: skip
def test_the_size_of_a_file_tells_about_what_it_needs(config, megabytes, tmp_path):
    """It was a quarter more than the file: less than half of what a small model takes."""
    (tmp_path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    model_config = read_model_config(tmp_path)
    resolved = resolve(EngineConfig(), Machine(2, 128 * 10**9, 64 * 10**9), model_config)
    demand = model_demand(model_config, resolved, megabytes * 10**6, "float32")
    assert 1 <= likely_bytes(megabytes * 10**6) / demand.least_bytes <= 1.25
