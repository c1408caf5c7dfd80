"""Any value of any key: a configuration, or an error that says which key; never anything else."""

from __future__ import annotations

import json
import math
from array import array

import pytest

from quire.checkpoints.gguf.gguf_keys import NEUTRAL, OTHER_KEYS
from quire.checkpoints.gguf.gguf_writer import write_gguf
from quire.core.errors import ModelLoadError
from quire.core.model.model_config import ModelConfig
from quire.models.config.config_reader import read_model_config
from quire.models.gguf.gguf_architectures import ARCHITECTURES
from quire.models.gguf.gguf_config import read_gguf_config
from quire.models.gguf.gguf_export import GgufExport
from quire.models.gguf.gguf_metadata import PlannedFile
from tests.models.conftest import SHARED
from tests.models.gguf_settings import SETTINGS

#: One model of each architecture.
NAMES = {
    "llama": "mixtral", "qwen2": "qwen2", "qwen3": "qwen3", "gpt2": "gpt2", "gemma": "gemma",
    "gemma3": "gemma3", "phi2": "phi", "phi3": "phi3-long", "gptneox": "gpt-neox",
    "falcon": "falcon-40b", "starcoder2": "starcoder2", "smollm3": "smollm3", "glm4": "glm4",
    "qwen2moe": "qwen2-moe", "qwen3moe": "qwen3-moe", "olmo2": "olmo3", "olmoe": "olmoe",
    "seed_oss": "seed-oss", "ernie4_5": "ernie", "exaone4": "exaone4-wide",
    "gpt-oss": "gpt-oss", "dots1": "dots1", "gemma2": "gemma2", "granitemoe": "granite-moe",
    "llama4": "llama4", "mistral3": "ministral3-scored", "deepseek2": "deepseek-v3",
    "glm4moe": "glm4-moe", "stablelm": "stablelm", "bert": "bert",
    "chatglm": "glm", "granite": "granite", "command-r": "cohere", "cohere2": "cohere2",
}  # fmt: skip
MODELS = SETTINGS | {"bert": ("Bert", SHARED)}
VALUES = [
    0, 1, -1, 3, 62, 2**31, 2**64 - 1, 0.0, -1.0, 0.5, 1e-45, 3.4e38, math.inf, math.nan, True,
    False, "", "none", "yarn", "linear", "longrope", [], ["x"], [True, False, True],
    array("i", [1, 2, 3]), array("f", [1.0, 1.0]), array("q", [-1]), array("Q", [2**64 - 1]),
]  # fmt: skip


#: Rows that the values of an architecture's keys are divided into.
NUM_PARTS = 4


def test_every_architecture_has_a_model():
    assert set(NAMES) == set(ARCHITECTURES)


@pytest.fixture(scope="module")
def exported(saved_oracle):
    """Return a function that gives an architecture's folder and what is in its file, made once."""
    made = {}

    def get(architecture):
        if architecture not in made:
            folder = saved_oracle(*MODELS[NAMES[architecture]])[1]
            made[architecture] = folder, GgufExport(folder, "F32")
        return made[architecture]

    return get


@pytest.mark.parametrize("part", range(NUM_PARTS))
@pytest.mark.parametrize("architecture", NAMES)
def test_any_value_gives_a_model_or_a_load_error(architecture, part, exported):
    """Each key has each value, in the rows of all parts together."""
    folder, file = exported(architecture)
    keys = {*ARCHITECTURES[architecture].keys.values(), *NEUTRAL, *OTHER_KEYS}
    read = refused = 0
    for number, key in enumerate(sorted(keys)):
        for value in VALUES[(part + number) % NUM_PARTS :: NUM_PARTS]:
            metadata = file.metadata | {f"{architecture}.{key}": value}
            try:
                config = read_gguf_config(PlannedFile(folder, metadata, file.tensors))
            except ModelLoadError as error:
                refused += 1
                assert str(error).startswith("[load] ") and "; got " in str(error)
            else:
                read += 1
                assert isinstance(config, ModelConfig)
    assert read and refused


def test_how_vectors_are_pooled(create_oracle, tmp_path):
    """As sentence-transformers' files say, also of a model that generates."""
    create_oracle(*SETTINGS["qwen3"]).save_pretrained(tmp_path)
    modules = [
        {"type": f"sentence_transformers.models.{name}", "path": path}
        for name, path in (("Transformer", ""), ("Pooling", "pool"), ("Normalize", ""))
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    exported = GgufExport(tmp_path, "F32")
    assert exported.metadata["qwen3.pooling_type"] == 1
    write_gguf(tmp_path / "model.gguf", exported.metadata, exported.tensors)
    assert read_model_config(tmp_path / "model.gguf").pooling.kind == "mean"
    exported.metadata["qwen3.pooling_type"] = 5
    write_gguf(tmp_path / "model.gguf", exported.metadata, exported.tensors)
    with pytest.raises(ModelLoadError, match="qwen3.pooling_type must be one of 1, 2, 3; got 5"):
        read_model_config(tmp_path / "model.gguf")
