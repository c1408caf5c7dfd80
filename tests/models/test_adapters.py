"""Adapters that peft wrote: what they make of a model, and which are refused."""

import copy
import json
import warnings

import numpy as np
import pytest

from tests.lazy_packages import lazy_package

lazy_package("torch")
lazy_package("peft")

from quire.checkpoints.checkpoint import Checkpoint  # noqa: E402
from quire.cli.main import run  # noqa: E402
from quire.core.errors import ModelLoadError  # noqa: E402
from quire.models.adapters.adapter_placement import largest_adapter_bytes, place_adapter  # noqa: E402
from quire.models.adapters.base_weights import BaseWeights  # noqa: E402
from quire.models.adapters.matching import check_adapter  # noqa: E402
from quire.models.adapters.peft_folder import (  # noqa: E402
    WEIGHTS,
    describe_adapter,
    hash_adapter,
    read_adapter,
)
from quire.models.adapters.peft_settings import CONFIG  # noqa: E402
from quire.models.adapters.places import read_places  # noqa: E402
from tests.models.peft_adapters import add, check_rows  # noqa: E402

LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
#: Matrices of their own, fused ones, transposed ones, and rows that kernels want in another order.
TARGETS = {
    "llama": [*LLAMA, "lm_head"],
    "qwen3": LLAMA,
    "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "gpt-neox": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
    "falcon-40b": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
    "glm": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"],
    "mixtral": ["q_proj", "k_proj", "v_proj", "o_proj"],
}


@pytest.mark.parametrize("name", TARGETS)
def test_logits_are_those_of_peft(
    name, oracle, adapted, backend, create_driver, oracle_logits, random_prompts
):
    model, folder = adapted(name, TARGETS[name])
    driver = add(create_driver(oracle(name)[1], backend, takes_adapters=True), folder)
    (prompt,) = random_prompts([23])
    driver.adapters = [1]
    driver.step([np.array(prompt[:9])], wanted="none")
    got = driver.step([np.array(prompt[9:])])
    want = oracle_logits(model, prompt)[9:]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    plain = oracle_logits(oracle(name)[0], prompt)[9:]
    assert np.abs(want - plain).max() > 0.05 * np.abs(plain).max()


@pytest.mark.parametrize(
    "settings",
    [
        {"use_rslora": True},
        {"rank_pattern": {"q_proj": 3, "layers.1.mlp.up_proj": 7}},
        {"alpha_pattern": {"v_proj": 11}, "rank_pattern": {"v_proj": 2}},
        {"layers_to_transform": [1]},
        {"exclude_modules": ["up_proj", "layers.0.self_attn.q_proj"]},
    ],
)
def test_settings_of_modules_are_kept(
    settings, oracle, adapted, backend, create_driver, oracle_logits, random_prompts
):
    model, folder = adapted("llama", LLAMA, **settings)
    driver = add(create_driver(oracle("llama")[1], backend, takes_adapters=True), folder)
    (prompt,) = random_prompts([12])
    driver.adapters = [1]
    want = oracle_logits(model, prompt)
    got = driver.step([np.array(prompt)])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


#: What peft trains besides low ranks: a model, and the settings that ask for it.
KINDS = {
    "dora": ("llama", LLAMA, {"use_dora": True}),
    "dora on a head": ("llama", ["q_proj", "lm_head"], {"use_dora": True, "use_rslora": True}),
    "dora with biases": ("qwen2", LLAMA, {"use_dora": True, "bias": "all"}),
    "dora on stored transposes": ("gpt2", ["c_attn", "c_proj"], {"use_dora": True}),
    "dora on rows in turns": ("gpt-neox", ["query_key_value", "dense"], {"use_dora": True}),
    "biases of targets": ("qwen2", ["q_proj", "o_proj"], {"bias": "lora_only"}),
    "all biases": ("qwen2", ["v_proj", "down_proj"], {"bias": "all"}),
    "embedding": ("llama", ["embed_tokens", "q_proj"], {}),
    "embedding, scaled": ("gemma2", ["embed_tokens", "lm_head"], {}),
    "dora on an embedding": ("llama", ["embed_tokens", "v_proj"], {"use_dora": True}),
    "dora on a scaled embedding": ("gemma2", ["embed_tokens"], {"use_dora": True}),
    "biases of norms": ("starcoder2", ["q_proj", "c_fc"], {"bias": "all"}),
    "biases of norms that two parts share": ("phi", ["q_proj"], {"bias": "all"}),
    "biases of norms, transposed": ("gpt2", ["c_attn"], {"bias": "all", "use_dora": True}),
    "whole head": ("llama", ["q_proj"], {"modules_to_save": ["lm_head"]}),
    "whole embedding and head": (
        "llama", ["q_proj"], {"modules_to_save": ["embed_tokens", "lm_head"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_adapters_are_those_of_peft(
    kind, oracle, adapted, backend, create_driver, oracle_logits, random_prompts
):
    """Each row of a mixed batch has the bits it has alone."""
    name, targets, settings = KINDS[kind]
    models, prompts = (oracle, adapted), random_prompts([14, 9])
    check_rows(models, name, (targets, settings), backend, create_driver, oracle_logits, prompts)


@pytest.mark.parametrize("kind", KINDS)
def test_merged_weights_are_those_of_peft(kind, oracle, adapted, tmp_path, capsys):
    name, targets, settings = KINDS[kind]
    model, folder = adapted(name, targets, **settings)
    tied = oracle(name)[0].config.tie_word_embeddings
    code = run(["merge", str(oracle(name)[1]), str(folder), str(tmp_path / "out")])
    if tied and {"lm_head", "embed_tokens"} & {*targets, *settings.get("modules_to_save", ())}:
        assert code == 1 and "must be matrices of their own" in capsys.readouterr().err
        return
    assert code == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        merged = copy.deepcopy(model).merge_and_unload()
    checkpoint = Checkpoint(tmp_path / "out")
    for parameter_name, parameter in merged.state_dict().items():
        if parameter_name in checkpoint.names:
            got, want = checkpoint.tensor(parameter_name).float32(), parameter.numpy()
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "phi3", "mixtral"])
def test_each_row_of_a_batch_has_its_own_adapter(
    name, oracle, adapted, backend, create_driver, random_prompts
):
    """Company changes no bit: neither of rows with an adapter nor of those without."""
    if backend.name == "reference":
        pytest.skip("torch's attention rounds differently with the shapes")
    folders = [adapted(name, TARGETS[name], seed=seed)[1] for seed in (0, 1)]
    driver = add(create_driver(oracle(name)[1], backend, takes_adapters=True), *folders)
    prompts = [np.array(prompt) for prompt in random_prompts([14, 9, 11, 7, 9])]
    adapters = [1, 0, 2, 1, 0]

    def logits(which, plain=False):
        used = create_driver(oracle(name)[1], backend) if plain else driver
        used.start(len(which))
        used.adapters = None if plain else [adapters[i] for i in which]
        used.step([prompts[i][:5] for i in which], wanted="none")
        return used.step([prompts[i][5:] for i in which], "last")

    together = logits(range(5))
    for i in range(5):
        np.testing.assert_array_equal(together[i], logits([i])[0])
        if adapters[i] == 0:
            np.testing.assert_array_equal(together[i], logits([i], plain=True)[0])


def test_places_are_told_by_the_headers_alone(oracle, backend, create_driver, adapted):
    for name in TARGETS:
        folder = oracle(name)[1]
        driver = create_driver(folder, backend, takes_adapters=True)
        told = {place.modules: place for place in read_places(folder)}
        made = {slots.place.modules: slots.place for slots in driver.decoder.adapted}
        assert told.keys() == made.keys()
        for modules, place in told.items():
            assert (place.rows, place.columns) == (made[modules].rows, made[modules].columns)
        adapter = read_adapter(adapted(name, TARGETS[name])[1])
        extra = check_adapter(adapter, list(told.values()), 5)
        placed = place_adapter(adapter, driver.decoder.adapted, backend, BaseWeights(folder))
        assert 0 < placed.nbytes - extra <= largest_adapter_bytes(list(told.values()), 5)


@pytest.fixture
def changed(adapted, tmp_path):
    """Return a function that copies an adapter with other settings."""

    def change(**settings):
        folder = adapted("llama", LLAMA)[1]
        (tmp_path / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes())
        config = json.loads((folder / CONFIG).read_text()) | settings
        (tmp_path / CONFIG).write_text(json.dumps(config))
        return tmp_path

    return change


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type must be LORA; got IA3"),
        ({"use_dora": True}, r"must have magnitudes \(64,\) with use_dora, and none"),
        ({"use_dora": "yes"}, "use_dora must be true or false; got yes"),
        ({"bias": "some"}, "bias must be none, all or lora_only; got some"),
        ({"modules_to_save": "lm_head"}, "modules_to_save must be a list of names"),
        ({"ensure_weight_tying": True}, "ensure_weight_tying must be false; got True"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights must be of a kind"),
        ({"r": 6}, "must have the rank of adapter_config.json, 6; got 5"),
        ({"r": 10**400}, "r must be a number above 0; got 1000"),
        ({"peft_version": f"{'9' * 5000}.0.0", "r": 6}, "must have the rank"),
        ({"r": None}, "r must be a number above 0; got None"),
        ({"lora_alpha": float("inf")}, "lora_alpha must be a number above 0; got inf"),
        ({"lora_alpha": True}, "lora_alpha must be a number above 0; got True"),
        ({"alpha_pattern": {"(a+)+$": 3}}, "alpha_pattern must be of names of modules"),
        ({"rank_pattern": [1]}, "rank_pattern must be an object"),
    ],
)
def test_what_would_change_the_answers_is_refused(settings, message, changed):
    with pytest.raises(ModelLoadError, match=message):
        read_adapter(changed(**settings))


def test_a_pickled_adapter_is_never_opened(changed):
    folder = changed()
    (folder / WEIGHTS).unlink()
    with pytest.raises(ModelLoadError, match=r"must hold adapter_model.safetensors; got no such"):
        read_adapter(folder)
    (folder / "adapter_model.bin").write_bytes(b"cos\nsystem\n")
    with pytest.raises(ModelLoadError, match="got adapter_model.bin, a pickled file"):
        read_adapter(folder)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "x" * (1 << 21)])
def test_settings_that_are_no_object_are_refused(text, changed):
    folder = changed()
    (folder / CONFIG).write_text(text)
    with pytest.raises(ModelLoadError, match="must be a JSON object"):
        read_adapter(folder)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ModelLoadError, match="must be readable; got No such file"):
        read_adapter(tmp_path / "missing")


def test_an_adapter_of_another_model_is_refused(oracle, adapted):
    adapter = read_adapter(adapted("llama", LLAMA)[1])
    with pytest.raises(ModelLoadError, match=r"must be for linears of the model, .*c_attn"):
        check_adapter(adapter, read_places(oracle("gpt2")[1]), 8)
    with pytest.raises(ModelLoadError, match=r"must be for a matrix of \(80, 64\); got \(64, 64\)"):
        check_adapter(adapter, read_places(oracle("qwen3")[1]), 8)
    with pytest.raises(ModelLoadError, match=r"at most --max-lora-rank \(4\); got 5"):
        check_adapter(adapter, read_places(oracle("llama")[1]), 4)


def test_other_content_has_another_hash(changed):
    folder = changed()
    first = describe_adapter("a", read_adapter(folder), 0)
    assert first.content_hash == describe_adapter("b", read_adapter(folder), 0).content_hash
    assert first.cache_keys == (f"adapter:{hash_adapter(folder)}",)
    other = describe_adapter("a", read_adapter(changed(lora_alpha=4)), 0)
    assert first.content_hash != other.content_hash
