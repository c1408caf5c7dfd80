"""Which matrices are quantized at load, and the overrides of modules."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from quire.core.errors import ConfigError
from quire.kernels.registry import create_backend
from quire.models.config.config_reader import read_model_config
from quire.models.loader import load_model
from quire.quantization.quantization_plan import SMALL_MODEL, create_plan
from quire.quantization.rounding_schemes import create_scheme
from quire.settings.config import EngineConfig, ModelOptions
from quire.store.hub import resolve_model
from tools.random_checkpoint import PRESETS, random_checkpoint


def plan(overrides, **options):
    return create_plan(ModelOptions(quantization_overrides=overrides, **options))


def test_the_first_pattern_that_fits_counts():
    made = plan("lm_head=none,*.layers.0.*=int8,*.down_proj=nf4", quantization="int4")
    assert made.scheme_of("lm_head", made.tables) is None
    assert made.scheme_of("model.layers.0.mlp.down_proj", made.layers).bits == 8
    assert made.scheme_of("model.layers.1.mlp.down_proj", made.layers).code_book is not None
    assert made.scheme_of("model.layers.1.mlp.up_proj", made.layers) == create_scheme("int4")


@pytest.mark.parametrize("text", ["lm_head", "=int8", "lm_head=bf16", "lm_head=int8,", "a=b=int8"])
def test_what_is_no_list_of_pairs_is_refused(text):
    with pytest.raises(ConfigError, match="--quantization-overrides must be pairs"):
        EngineConfig.from_keywords(quantization_overrides=text)


def test_a_group_size_may_be_for_overrides_alone():
    EngineConfig.from_keywords(quantization_overrides="*=int4", quantization_group_size=64)


def test_small_models_have_inputs_of_16_bits():
    config = read_model_config(resolve_model("quire-tiny"))
    large = replace(config, num_layers=1000)
    assert large.num_parameters > SMALL_MODEL > config.num_parameters
    assert create_plan(ModelOptions(), config).fine_activations == "small model"
    assert not create_plan(ModelOptions(), large).fine_activations
    assert not create_plan(ModelOptions(activations="int8"), config).fine_activations
    assert not create_plan(ModelOptions(activations="fp32"), config).fine_activations
    asked = create_plan(ModelOptions(activations="int16"), large)
    assert asked.fine_activations == "asked" and asked.own_activations
    encoder = replace(config, is_encoder=True)
    assert not create_plan(ModelOptions(), encoder).fine_activations


@pytest.mark.parametrize(("quantization", "told"), [("int8", True), (None, False)])
def test_a_small_model_says_how_its_inputs_are_rounded(quantization, told, caplog):
    path, options = resolve_model("quire-tiny"), ModelOptions(quantization=quantization)
    with caplog.at_level(logging.INFO):
        made = create_plan(options, read_model_config(path))
        load_model(path, create_backend("cpu", threads=1), plan=made)
    lines = [line for line in caplog.messages if line.startswith("activations = int16, not int8:")]
    assert len(lines) == told
    assert any("inputs in int16" in line for line in caplog.messages) == told


@pytest.fixture
def load(tmp_path, caplog):
    """Return a function that loads a tiny model and returns the lines about its weights."""

    def run(preset, overrides, **options):
        random_checkpoint(tmp_path, PRESETS[preset])
        backend = create_backend("cpu", threads=1)
        with caplog.at_level(logging.INFO):
            load_model(tmp_path, backend, plan=plan(overrides, **options))
        return [message for message in caplog.messages if "matrices are" in message]

    return run


def test_modules_are_held_as_asked_and_it_is_said(load):
    kept, *forms = load("tiny-llama", "lm_head=none,*.v_proj=int8", quantization="int4")
    assert "lm_head.weight" in kept
    assert "embed_tokens" not in kept
    # Embedding and three v_proj in 8 bits; six other matrices of three layers in 4.
    assert forms == [
        "18 matrices are held in 4 bits, groups of 32, float16 scales",
        "4 matrices are held in 8 bits, groups of 32, float16 scales",
    ]


def test_overrides_alone_leave_the_rest(load):
    kept, form = load("tiny-llama", "*.down_proj=int4")
    assert form.startswith("3 matrices are held in 4 bits")
    assert "q_proj" in kept


def test_a_tied_head_is_the_embedding(load):
    kept, *_ = load("tiny-qwen3", "lm_head=none", quantization="int4")
    assert "model.embed_tokens.weight" in kept


def test_a_pattern_that_fits_nothing_is_refused(load):
    with pytest.raises(ConfigError, match=r"got \*.w1, which fits none of lm_head, .*q_proj"):
        load("tiny-llama", "*.w1=int8", quantization="int4")
