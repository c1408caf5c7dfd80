"""A model rounded next to itself: what is equal is held once, and computes the same."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.errors import ConfigError
from quire.kernels.registry import create_backend
from quire.models.config.config_reader import read_model_config
from quire.models.loader import load_model, load_rounded
from quire.models.weight_bytes import expected_weight_bytes
from quire.quantization.quantization_plan import QuantizationPlan
from quire.quantization.rounding_schemes import create_scheme
from tests.models.conftest import Driver
from tools.random_checkpoint import PRESETS, random_checkpoint
from tools.random_gguf import random_gguf

INT8, INT4 = create_scheme("int8"), create_scheme("int4")
ROUNDED = QuantizationPlan(INT4, INT8)
PLANS = {
    "floats": QuantizationPlan(),
    "int8": QuantizationPlan(INT8, INT8),
    "int4": QuantizationPlan(INT4, INT8),
    "exact": QuantizationPlan(INT8, INT8, exact_activations=True),
    "overrides": QuantizationPlan(INT8, INT8, False, (("*[oc]_proj", INT4), ("lm_head", None))),
}
PRESET_NAMES = ["tiny-llama", "tiny-mixtral", "tiny-qwen3", "tiny-gpt2"]
PROMPT = [np.arange(20) * 5 % 250]


@pytest.fixture(scope="module", params=PRESET_NAMES)
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("rounded") / "model"
    random_checkpoint(path, PRESETS[request.param], dtype="bfloat16")
    return path


def linears(decoder):
    """Return the linears of a decoder that are no experts', and its norms' weights."""
    parts = decoder._parts
    layers = parts.layers
    inner = [part for layer in layers for part in (layer.mixing.inputs, layer.output)]
    matrices = [parts.head, *inner]
    norms = [
        parts.embedded.first_norm,
        *(n for layer in layers for n in (layer.mlp_norm, layer.next_norm)),
    ]
    return matrices, [norm._weight for norm in norms]


@pytest.mark.parametrize("held", PLANS)
def test_what_is_equal_is_held_once(folder, backend, held):
    target = load_model(folder, backend, plan=PLANS[held], max_model_len=100)
    rounded = load_rounded(folder, target, ROUNDED)
    (theirs, their_norms), (ours, our_norms) = linears(target), linears(rounded)
    assert rounded.embedding is target.embedding
    assert len(our_norms) > 6
    assert all(a is b for a, b in zip(our_norms, their_norms, strict=True))
    shared = [a is b for a, b in zip(ours, theirs, strict=True)]
    head, qkv, output = shared[0], set(shared[1::2]), set(shared[2::2])
    assert head == (held in ("int8", "int4"))
    assert qkv == {held == "int4"}
    assert output == {held in ("int4", "overrides")}
    assert rounded.max_model_len == 100


@pytest.mark.parametrize("held", PLANS)
def test_its_bytes_are_its_own_and_foretold(folder, held):
    backend = create_backend("cpu", threads=1)
    config = read_model_config(folder)
    target = load_model(folder, backend, plan=PLANS[held], max_model_len=100)
    rounded = load_rounded(folder, target, ROUNDED)
    args = folder, config, "bfloat16", ROUNDED, 100
    assert rounded.weight_bytes == expected_weight_bytes(*args, target_plan=PLANS[held])
    apart = load_model(folder, backend, plan=ROUNDED, max_model_len=100)
    tables = 0 if config.tie_word_embeddings else apart.embedding.nbytes
    assert rounded.weight_bytes < apart.weight_bytes - tables


def test_it_computes_as_when_held_twice(folder, backend):
    """Where the target's embedding is rounded alike."""
    apart = Driver(folder, backend, plan=ROUNDED, max_model_len=100)
    target = load_model(folder, backend, plan=PLANS["int8"], max_model_len=100)
    shared = Driver(folder, backend, plan=ROUNDED, max_model_len=100)
    shared.decoder = load_rounded(folder, target, ROUNDED)
    np.testing.assert_array_equal(shared.step(PROMPT), apart.step(PROMPT))


def test_packed_weights_are_kept_apart_from_those_of_the_whole(folder, tmp_path):
    """What is shared is not in its file, which a start without it would miss."""
    backend = create_backend("cpu", threads=1)
    cache = str(tmp_path / "cache")
    logits = []
    for held in ("int8", "floats", "int8", "floats", "int4", "int4"):
        target = load_model(folder, backend, plan=PLANS[held], packed_weights_cache=cache)
        driver = Driver(folder, backend, plan=ROUNDED, packed_weights_cache=cache)
        driver.decoder = load_rounded(folder, target, ROUNDED, packed_weights_cache=cache)
        logits.append(driver.step(PROMPT))
    np.testing.assert_array_equal(logits[0], logits[2])
    np.testing.assert_array_equal(logits[1], logits[3])
    np.testing.assert_array_equal(logits[0], logits[4])
    np.testing.assert_array_equal(logits[4], logits[5])


def test_weights_of_few_bits_are_refused(backend, tmp_path):
    path = tmp_path / "model.gguf"
    random_gguf(path, "Q8_0", "tiny-llama")
    target = load_model(path, backend)
    with pytest.raises(ConfigError, match="needs a checkpoint of floats"):
        load_rounded(path, target, ROUNDED)
