"""The number of weights, counted from a configuration and from the tensors that it takes."""

from __future__ import annotations

import json
import math

import pytest

from quire.models.config.config_reader import read_model_config
from quire.models.family_tensors import family_names
from quire.models.weight_map import WeightMap
from tools.random_checkpoint import PRESETS

SIZES = {
    "vocab_size": 211, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 96, "max_position_embeddings": 256,
}  # fmt: skip
EXPERTS = {
    "granite-moe-shared": {
        "architectures": ["GraniteMoeSharedForCausalLM"], "shared_intermediate_size": 40,
    },
    "qwen2-moe": {"architectures": ["Qwen2MoeForCausalLM"], "mlp_only_layers": [0, 2]},
    "qwen3-moe": {"architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 2},
    "dense": {"architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 5},
}  # fmt: skip
#: Encoders of pictures are counted where they are loaded.
DECODERS = {name: config for name, config in PRESETS.items() if "vision_config" not in config}
CONFIGS = DECODERS | {name: SIZES | settings for name, settings in EXPERTS.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_as_many_as_the_tensors_hold(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    config = read_model_config(tmp_path)
    shapes = WeightMap(config, family_names(config)).shapes()
    assert config.num_parameters == sum(map(math.prod, shapes.values()))
