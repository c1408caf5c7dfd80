"""The number of weights, counted from a configuration and from the tensors that it takes."""

from __future__ import annotations

import json
import math

import pytest

from quire.models.config_reader import read_model_config
from quire.models.registry import get_family
from quire.models.weight_map import WeightMap
from tools.random_checkpoint import PRESETS


@pytest.mark.parametrize("preset", PRESETS)
def test_as_many_as_the_tensors_hold(preset, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PRESETS[preset]))
    config = read_model_config(tmp_path)
    shapes = WeightMap(config, get_family(config.architecture).weight_names(config)).shapes()
    assert config.num_parameters == sum(map(math.prod, shapes.values()))
