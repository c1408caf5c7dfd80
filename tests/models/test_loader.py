"""Checkpoints in all their layouts, and every way in which one can be wrong."""

import json
import logging
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from quire.core.errors import ConfigError, ModelLoadError, WeightMismatchError
from quire.kernels.registry import create_backend
from quire.models.loader import load_model

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def reference():
    return create_backend("reference", threads=1)


@pytest.fixture
def copy(oracle, tmp_path):
    """Return a function that copies a model's folder, so that a test can damage it."""

    def copy_folder(name="llama"):
        folder = tmp_path / name
        shutil.copytree(oracle(name)[1], folder)
        return folder

    return copy_folder


def edit(folder, change):
    """Rewrite the weights: ``change`` gets the dict of arrays."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def last_logits(driver, prompt):
    return driver.step([np.array(prompt)])


def test_shards_and_progress(oracle, reference, create_driver, random_prompts, tmp_path):
    model, folder = oracle("llama")
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    seen = []
    driver = create_driver(
        tmp_path, reference, on_progress=lambda done, total: seen.append((done, total))
    )
    (prompt,) = random_prompts([9])
    assert np.array_equal(
        last_logits(driver, prompt), last_logits(create_driver(folder, reference), prompt)
    )
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] == sum(p.nbytes for p in model.parameters())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_checkpoints(
    dtype, create_oracle, backend, create_driver, random_prompts, oracle_logits, tmp_path
):
    settings = {"hidden_size": 48, "num_attention_heads": 3, "num_hidden_layers": 2}
    settings |= {"vocab_size": 97, "intermediate_size": 80, "max_position_embeddings": 64}
    model = create_oracle("Llama", settings).to(getattr(torch, dtype))
    model.save_pretrained(tmp_path)
    model = type(model).from_pretrained(tmp_path, dtype=torch.float32)
    (prompt,) = random_prompts([20], vocab_size=97)
    want = oracle_logits(model, prompt)
    driver = create_driver(tmp_path, backend, dtype="float32")
    assert driver.decoder.config.dtype == "float32"
    got = last_logits(driver, prompt)
    assert np.abs(got - want).max() < 1e-4 * np.abs(want).max()
    driver = create_driver(tmp_path, backend)
    assert driver.decoder.config.dtype == dtype
    got = last_logits(driver, prompt)
    # Weights are held as they were saved; a backend may round activations to that type too.
    assert np.abs(got - want).max() < 2e-2 * np.abs(want).max()


def test_gpt2_without_the_first_part_of_names(copy, reference, create_driver, random_prompts):
    folder = copy("gpt2")
    (prompt,) = random_prompts([9])
    want = last_logits(create_driver(folder, reference), prompt)

    def rename(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        # Old checkpoints carry the causal mask.
        tensors["h.0.attn.bias"] = np.ones((1, 1, 128, 128), dtype=np.uint8)
        tensors["h.0.attn.masked_bias"] = np.array(-1e4, dtype=np.float32)

    edit(folder, rename)
    assert np.array_equal(last_logits(create_driver(folder, reference), prompt), want)


def test_harmless_buffers_are_passed_over(copy, reference, caplog):
    folder = copy()
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit(folder, lambda tensors: tensors.update({name: np.ones(8, dtype=np.float32)}))
    with caplog.at_level(logging.INFO):
        load_model(folder, reference)
    assert name in caplog.text


def test_repeated_tied_head_must_be_equal(copy, reference, caplog):
    folder = copy("qwen3")

    def repeat(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()

    edit(folder, repeat)
    with caplog.at_level(logging.INFO):
        load_model(folder, reference)
    assert "repeats the tied embedding" in caplog.text

    def differ(tensors):
        tensors["lm_head.weight"] += 1

    edit(folder, differ)
    with pytest.raises(WeightMismatchError, match=r"lm_head\.weight must equal model\.embed"):
        load_model(folder, reference)


def test_tied_matrix_may_be_stored_as_the_head_alone(
    copy, reference, create_driver, random_prompts
):
    """Such checkpoints were refused: missing model.embed_tokens.weight."""
    folder, (prompt,) = copy("qwen3"), random_prompts([9])
    want = last_logits(create_driver(folder, reference), prompt)

    def rename(tensors):
        tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")

    edit(folder, rename)
    assert np.array_equal(last_logits(create_driver(folder, reference), prompt), want)


PREFIXES = {
    "llama": "model.",
    "qwen3-moe": "model.",
    "deepseek-v3": "model.",
    "falcon-7b": "transformer.",
    "gpt-j": "transformer.",
    "gpt-neox": "gpt_neox.",
}


@pytest.mark.parametrize("name", PREFIXES)
def test_names_may_be_those_of_the_class_without_a_head(
    name, copy, reference, create_driver, random_prompts
):
    """Checkpoints saved from the bare class, as Qwen3-Embedding's, were refused: all missing."""
    folder, (prompt,) = copy(name), random_prompts([9])
    want = last_logits(create_driver(folder, reference), prompt)

    def rename(tensors):
        for each in list(tensors):
            tensors[each.removeprefix(PREFIXES[name])] = tensors.pop(each)

    edit(folder, rename)
    assert np.array_equal(last_logits(create_driver(folder, reference), prompt), want)


def change_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_class_without_a_head_is_its_decoder(copy, reference, create_driver, random_prompts):
    """LlamaModel and the like were unknown architectures."""
    folder, (prompt,) = copy("qwen3"), random_prompts([9])
    want = last_logits(create_driver(folder, reference), prompt)
    change_config(folder, architectures=["Qwen3Model"])
    assert np.array_equal(last_logits(create_driver(folder, reference), prompt), want)

    folder = copy("llama")
    change_config(folder, architectures=["LlamaModel"])
    edit(folder, drop("lm_head.weight"))
    assert not load_model(folder, reference).config.generates


def drop(name):
    return lambda tensors: tensors.pop(name)


def put(name, shape):
    return lambda tensors: tensors.update({name: np.zeros(shape, dtype=np.float32)})


Q0 = "model.layers.0.self_attn.q_proj"
MISMATCHES = {
    "missing": (drop(f"{Q0}.weight"), rf"missing {Q0}.weight \(64, 64\)"),
    "missing-norm": (drop("model.norm.weight"), r"missing model\.norm\.weight \(64,\)"),
    "missing-embedding": (drop("model.embed_tokens.weight"), r"missing model\.embed_tokens"),
    "missing-head": (drop("lm_head.weight"), r"missing lm_head\.weight \(211, 64\)"),
    "surplus": (put("model.layers.3.mlp.up_proj.weight", (96, 64)), "surplus model.layers.3.mlp"),
    "surplus-bias": (put(f"{Q0}.bias", (64,)), f"surplus {Q0}.bias"),
    "shape": (put(f"{Q0}.weight", (64, 60)), r"weight must have shape \(64, 64\); got \(64, 60\)"),
    "norm-shape": (put("model.norm.weight", (64, 1)), r"norm.weight must have shape \(64,\); got"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISMATCHES)
def test_mismatch_names_the_tensor_and_both_shapes(copy, reference, name):
    change, message = MISMATCHES[name]
    folder = copy()
    edit(folder, change)
    with pytest.raises(WeightMismatchError, match=message):
        load_model(folder, reference)


def test_many_mismatches_are_counted(copy, reference):
    folder = copy()
    edit(folder, lambda tensors: [tensors.pop(name) for name in list(tensors) if "mlp" in name])
    with pytest.raises(WeightMismatchError, match=r"and 1 more\. Check"):
        load_model(folder, reference)


def test_truncated_weights_are_refused(copy, reference):
    folder = copy()
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors: .* must lie in the file"):
        load_model(folder, reference)


def test_weights_of_another_type_are_refused(copy, reference):
    folder = copy()
    edit(folder, lambda t: t.update({"model.norm.weight": np.ones(64, dtype=np.float64)}))
    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight must be one of F32.*got F64"):
        load_model(folder, reference)


def test_pickle_is_refused(copy, reference):
    folder = copy()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"got pytorch_model\.bin .* pickle"):
        load_model(folder, reference)


def test_missing_files_are_named(copy, reference, tmp_path):
    folder = copy()
    (folder / "model.safetensors").unlink()
    with pytest.raises(
        ModelLoadError, match=r"must hold model\.safetensors or .*index\.json; got con"
    ):
        load_model(folder, reference)
    with pytest.raises(ModelLoadError, match=r"config\.json must be readable"):
        load_model(tmp_path / "nowhere", reference)


INDEX = {
    "no-map": ({}, "must hold a weight_map"),
    "outside": ({"a": "../secret.safetensors"}, "a must name a file of the folder"),
    "not-text": ({"a": 5}, "a must name a file of the folder"),
    "no-file": ({"a": "gone.safetensors"}, r"gone\.safetensors must be readable"),
}


@pytest.mark.parametrize("name", INDEX)
def test_an_index_must_name_files_of_its_folder(copy, reference, name):
    weight_map, message = INDEX[name]
    folder = copy()
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    index = {"weight_map": weight_map} if weight_map else {}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelLoadError, match=message):
        load_model(folder, reference)


def shard(folder, weight_map, **more):
    """Make two files of one, with an index; ``more`` are further tensors of the second file."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    halves = [{name: tensors[name] for name in sorted(tensors)[half::2]} for half in (0, 1)]
    save_file(halves[0], folder / "a.safetensors")
    save_file(halves[1] | more, folder / "b.safetensors")
    listed = {name: file for half, file in zip(halves, FILES, strict=True) for name in half}
    index = {"weight_map": {**listed, **weight_map(listed)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


FILES = ("a.safetensors", "b.safetensors")
ROTARY = "model.layers.0.self_attn.rotary_emb.inv_freq"


@pytest.mark.parametrize(
    ("weight_map", "more"),
    [
        (lambda listed: {"mtp.fc.weight": "b.safetensors"}, {}),
        (lambda listed: {}, {ROTARY: np.ones(8, np.float32)}),
        # Where each tensor is, the files say.
        (lambda listed: dict.fromkeys(listed, "b.safetensors") | {"x": "a.safetensors"}, {}),
    ],
)
def test_an_index_that_lists_too_much_or_too_little(
    weight_map, more, copy, reference, create_driver, random_prompts
):
    """It was refused, though every tensor that the model needs is stored."""
    folder, (prompt,) = copy(), random_prompts([9])
    want = last_logits(create_driver(folder, reference), prompt)
    shard(folder, weight_map, **more)
    assert np.array_equal(last_logits(create_driver(folder, reference), prompt), want)


def test_a_tensor_that_is_listed_and_needed_must_be_stored(copy, reference):
    folder = copy()
    shard(folder, lambda listed: {})
    file = (
        folder
        / json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"][
            "model.norm.weight"
        ]
    )
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file(tensors, file)
    with pytest.raises(WeightMismatchError, match=r"missing model\.norm\.weight \(64,\)"):
        load_model(folder, reference)


def test_a_tensor_of_two_files_is_where_the_index_says(copy, reference):
    folder = copy()
    name = sorted(load_file(folder / "model.safetensors"))[0]
    shape = load_file(folder / "model.safetensors")[name].shape
    shard(folder, lambda listed: {}, **{name: np.zeros(shape, np.float32)})
    load_model(folder, reference)
    index = folder / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    del weight_map[name]
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(
        WeightMismatchError, match=rf"b\.safetensors and .*a\.safetensors hold {name}"
    ):
        load_model(folder, reference)


def test_tensors_of_other_programs_are_not_read(copy, reference, caplog):
    """A state of an optimizer was reason to refuse the checkpoint."""
    folder = copy()
    edit(folder, put("optimizer.step", (1,)))
    with caplog.at_level(logging.WARNING):
        load_model(folder, reference)
    assert "not of this architecture are not read: 1, optimizer.step first" in caplog.text


def test_settings_beyond_the_model_are_refused(oracle, reference):
    folder = oracle("gpt2")[1]
    with pytest.raises(ConfigError, match=r"--max-model-len must be in 1\.\.128.*got 129"):
        load_model(folder, reference, max_model_len=129)
    with pytest.raises(ConfigError, match=r"--dtype must be one of .*; got int8"):
        load_model(folder, reference, dtype="int8")
    assert load_model(folder, reference, max_model_len=100).max_model_len == 100
