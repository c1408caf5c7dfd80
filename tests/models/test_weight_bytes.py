"""What weights will take, known before they are read."""

import pytest

from quire.checkpoints.gguf.gguf_writer import write_gguf
from quire.kernels.registry import create_backend
from quire.models.config.config_reader import read_model_config
from quire.models.gguf.gguf_export import GgufExport
from quire.models.loader import load_model
from quire.models.weight_bytes import expected_weight_bytes
from quire.quantization.quantization_plan import create_plan
from quire.settings.config import EngineConfig
from tests.models.conftest import MODELS
from tools.random_checkpoint import PRESETS, random_checkpoint
from tools.random_gguf import random_gguf

TINY = [name for name in PRESETS if name.startswith("tiny-")]
#: None is no quantization at load.
FORMS = [None, "int8", "int5", "int4", "int2", "nf4"]


def check(path, dtype, length=100, **settings):
    """Compare what is expected with what a load takes."""
    plan = create_plan(EngineConfig.from_keywords(model=str(path), **settings).model)
    expected = expected_weight_bytes(path, read_model_config(path), dtype, plan, length)
    backend = create_backend("cpu", threads=1)
    loaded = load_model(path, backend, dtype=dtype, plan=plan, max_model_len=length)
    assert expected == loaded.weight_bytes


@pytest.mark.parametrize("form", [*FORMS, "int4 in groups of 64"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("preset", TINY)
def test_it_is_what_they_take(preset, dtype, form, tmp_path):
    """Padding was left out, most of it of the experts' router; that one is never quantized."""
    random_checkpoint(tmp_path, PRESETS[preset], dtype=dtype)
    name, _, size = (form or "").partition(" in groups of ")
    groups = {"quantization_group_size": int(size)} if size else {}
    check(tmp_path, dtype, quantization=name or None, **groups)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_of_sizes_that_are_no_whole_panels(name, form, oracle):
    _, folder = oracle(name)
    check(folder, "float32", quantization=form)


def test_overrides_count(tmp_path):
    random_checkpoint(tmp_path, PRESETS["tiny-mixtral"], dtype="bfloat16")
    overrides = "*.q_proj=int8,*.gate=int8,lm_head=none,*.experts.0.*=int2"
    check(tmp_path, "bfloat16", quantization="int4", quantization_overrides=overrides)


@pytest.mark.parametrize("preset", ["tiny-llama", "tiny-mixtral", "tiny-qwen2"])
@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0", "Q4_1", "Q2_K", "Q4_K", "Q6_K"])
def test_of_gguf_files(name, preset, tmp_path):
    path = tmp_path / "model.gguf"
    random_gguf(path, name, preset)
    check(path, read_model_config(path).dtype)
    check(path, "float32")


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0", "Q4_K_M"])
def test_of_latents_in_gguf_files(name, oracle, tmp_path):
    path = tmp_path / "model.gguf"
    exported = GgufExport(oracle("deepseek-v2")[1], name)
    write_gguf(path, exported.metadata, exported.tensors)
    check(path, read_model_config(path).dtype)
    check(path, "float32")
