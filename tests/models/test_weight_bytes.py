"""What weights will take, known before they are read."""

import pytest

from quire.core.config import EngineConfig
from quire.kernels.registry import create_backend
from quire.models.config_reader import read_model_config
from quire.models.loader import load_model
from quire.models.weight_bytes import expected_weight_bytes
from quire.quantization.plan import create_plan
from tools.random_checkpoint import PRESETS, random_checkpoint


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("preset", ["tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-gpt2"])
def test_it_is_what_they_take(preset, dtype, tmp_path):
    """Norms and biases were counted in 16 bits: with the least memory a model did not load."""
    random_checkpoint(tmp_path, PRESETS[preset], dtype=dtype)
    plan = create_plan(EngineConfig().model)
    expected = expected_weight_bytes(tmp_path, read_model_config(tmp_path), dtype, plan, 1024)
    loaded = load_model(tmp_path, create_backend("cpu", threads=1), dtype=dtype, max_model_len=1024)
    assert expected == loaded.weight_bytes
