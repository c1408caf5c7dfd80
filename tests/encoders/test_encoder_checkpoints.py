"""Which files of encoders load, what is read of them, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from quire import LLM
from quire.core.errors import ModelLoadError, UnsupportedArchitectureError, WeightMismatchError
from quire.models.config.config_reader import read_model_config
from tests.encoders.conftest import TEXTS


def module(name, path=""):
    return {"idx": 0, "name": "0", "path": path, "type": f"sentence_transformers.models.{name}"}


TRANSFORMER, POOLING = module("Transformer"), module("Pooling", "1_Pooling")
NORMALIZE = module("Normalize", "2_Normalize")
MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")


def write_modules(folder, *modules, mode=None, **fields):
    """Write sentence-transformers' files; ``fields`` in place of those of a mode."""
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    named = {f"pooling_mode_{name}": name == mode for name in MODES}
    settings = {"word_embedding_dimension": 60, "include_prompt": True, **(fields or named)}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))


def rename(folder, change):
    """Change the names of a checkpoint's tensors; None drops one."""
    path = folder / "model.safetensors"
    tensors = {change(name): array for name, array in load_file(path).items()}
    tensors.pop(None, None)
    save_file(tensors, path, {"format": "pt"})


def vectors(folder, **options):
    with LLM(folder) as llm:
        return [output.outputs.data for output in llm.encode(TEXTS, use_tqdm=False, **options)]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"mode": "cls_token"}, "cls"),
        ({"mode": "mean_tokens"}, "mean"),
        ({"mode": "lasttoken"}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
    ],
)
@pytest.mark.parametrize("modules", [(TRANSFORMER, POOLING, NORMALIZE), (TRANSFORMER, POOLING)])
def test_modules_say_how_states_become_vectors(create_encoder, fields, kind, modules):
    oracle = create_encoder("bert")
    write_modules(oracle.folder, *modules, **fields)
    for text, vector in zip(TEXTS, vectors(oracle.folder), strict=True):
        expected = oracle.vector(text, kind)
        if NORMALIZE not in modules:
            states = oracle.run(text).last_hidden_state[0].double().numpy()
            whole = {"cls": states[0], "mean": states.mean(0), "last": states[-1]}[kind]
            expected = whole
        np.testing.assert_allclose(vector, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("modules", "fields", "text"),
    [
        ((TRANSFORMER, POOLING), {"mode": "max_tokens"}, "pooling_mode_max_tokens"),
        ((TRANSFORMER, POOLING), {"pooling_mode": "max"}, "cls, mean, lasttoken"),
        ((TRANSFORMER, POOLING),
         {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "one kind of pooling"),
        ((TRANSFORMER, POOLING, module("Dense")),
         {"mode": "mean_tokens"}, "models.Dense"),
    ],
)  # fmt: skip
def test_other_modules_are_refused(create_encoder, modules, fields, text):
    folder = create_encoder("bert").folder
    write_modules(folder, *modules, **fields)
    with pytest.raises(UnsupportedArchitectureError, match=text):
        read_model_config(folder)


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '[{"idx": 0}]'])
def test_damaged_modules_are_refused(create_encoder, text):
    folder = create_encoder("bert").folder
    (folder / "modules.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"modules\.json"):
        read_model_config(folder)


@pytest.mark.parametrize(("name", "prefix"), [("bert", "bert."), ("xlm-roberta", "roberta.")])
def test_names_with_the_prefix_are_the_same(create_encoder, name, prefix):
    oracle = create_encoder(name)
    before = vectors(oracle.folder, pooling="pooler")
    rename(oracle.folder, prefix.__add__)
    assert np.array_equal(vectors(oracle.folder, pooling="pooler"), before)


@pytest.mark.parametrize(("name", "prefix"), [("bert", ""), ("bert-score", "bert.")])
def test_stored_positions_are_not_needed(create_encoder, name, prefix):
    oracle = create_encoder(name)
    before = vectors(oracle.folder)
    path = oracle.folder / "model.safetensors"
    positions = {f"{prefix}embeddings.position_ids": np.arange(172)[None]}
    save_file(load_file(path) | positions, path, {"format": "pt"})
    assert np.array_equal(vectors(oracle.folder), before)


def test_a_checkpoint_may_be_without_the_pooler(create_encoder):
    oracle = create_encoder("bert")
    before = vectors(oracle.folder)
    rename(oracle.folder, lambda name: None if name.startswith("pooler") else name)
    assert np.array_equal(vectors(oracle.folder), before)
    with pytest.raises(Exception, match="pooler needs a checkpoint that has one"):
        vectors(oracle.folder, pooling="pooler")


def test_a_head_must_be_there(create_encoder):
    oracle = create_encoder("bert-classes")
    rename(oracle.folder, lambda name: None if name == "classifier.weight" else name)
    with pytest.raises(WeightMismatchError, match=r"missing classifier\.weight \(3, 60\)"):
        LLM(oracle.folder)


def test_pickles_are_refused(create_encoder):
    oracle = create_encoder("bert")
    (oracle.folder / "model.safetensors").rename(oracle.folder / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"must be safetensors; got pytorch_model\.bin"):
        LLM(oracle.folder)


@pytest.mark.parametrize(
    ("name", "changes", "activation"),
    [
        ("bert-score", {}, "sigmoid"),
        ("bert-score", {"problem_type": "regression"}, "identity"),
        ("bert-score", {"problem_type": "single_label_classification"}, "sigmoid"),
        ("bert-classes", {}, "softmax"),
        ("bert-classes", {"problem_type": "multi_label_classification"}, "sigmoid"),
        ("bert-score",
         {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
         "identity"),
        ("bert-score",
         {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"},
         "sigmoid"),
    ],
)  # fmt: skip
def test_activations_are_the_checkpoint_s(create_encoder, name, changes, activation):
    oracle = create_encoder(name)
    oracle.settings(**changes)
    logits = oracle.run(TEXTS[0]).logits[0].double()
    made = {"softmax": lambda x: x.softmax(0), "sigmoid": lambda x: x.sigmoid()}
    expected = made.get(activation, lambda x: x)(logits).tolist()
    with LLM(oracle.folder) as llm:
        found = llm.classify(TEXTS[0])[0].outputs.probs
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"problem_type": "ranking"}, "problem_type"),
        ({"id2label": {"1": "a", "2": "b"}}, "id2label"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Tanh"}}, "activation_fn"),
        ({"hidden_act": "mish"}, "hidden_act"),
    ],
)
def test_options_that_are_not_implemented_are_refused(create_encoder, changes, text):
    oracle = create_encoder("bert-classes")
    oracle.settings(**changes)
    with pytest.raises(ModelLoadError, match=text):
        read_model_config(oracle.folder)
