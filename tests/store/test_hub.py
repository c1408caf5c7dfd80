"""Where a model argument leads: folders, the embedded model, the hub's cache, and a hub."""

import sys

import pytest

from quire.core.errors import ModelLoadError
from quire.store import hub
from tests.commands import bare_environment, fork
from tests.store.hub_stand_in import COMMIT, HubStandIn, serving

FILES = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "model.safetensors": b"\2\0\0\0\0\0\0\0{}",
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "consolidated.safetensors": b"the same weights again",
    "pytorch_model.bin": b"a pickle",
    "README.md": b"# hello",
}
WANTED = {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"}


def run(function, arguments, home, **environment):
    """Call hub.function in a process of its own: the hub library reads its environment once."""
    code = (
        "import sys\n"
        "from quire.core.errors import ModelLoadError\n"
        "from quire.store import hub\n"
        "try:\n"
        f"    print(hub.{function}(*sys.argv[1:]))\n"
        "except ModelLoadError as error:\n"
        "    sys.exit(str(error))\n"
    )
    settings = {"HF_HOME": str(home), "QUIRE_CACHE": str(home / "quire"), "NO_PROXY": "*"}
    variables = bare_environment(**(settings | environment))
    return fork([sys.executable, "-c", code, *arguments], env=variables)


def fill_cache(home, files):
    repository = home / "hub" / "models--org--name"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for name in files:
        (snapshot / name).write_bytes(FILES[name])
    return snapshot


def test_a_folder_is_itself(tmp_path):
    assert hub.resolve_model(str(tmp_path)) == tmp_path
    assert hub.download_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("model", ["/no/such/folder", "./here", "~/there", "a/b/c", "", "a b"])
def test_what_is_neither_folder_nor_id_is_refused(model):
    with pytest.raises(ModelLoadError, match="must be a folder or GGUF file that exists"):
        hub.resolve_model(model)


@pytest.mark.parametrize("model", ["~no-such-user/model", "m" * 5000])
def test_names_that_no_file_can_have_are_refused(model):
    """They ended in the operating system's error."""
    with pytest.raises(ModelLoadError, match="must be a path or hub id; got .{,90}: [A-Z]"):
        hub.resolve_model(model)


def test_another_file_is_not_a_model(tmp_path):
    file = tmp_path / "model.bin"
    file.write_bytes(b"PK")
    with pytest.raises(ModelLoadError, match="must be a folder or a GGUF file"):
        hub.resolve_model(str(file))


def test_a_file_of_a_model_names_its_folder(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"x" * 8)
    for file in tmp_path.iterdir():
        with pytest.raises(ModelLoadError, match=f"Name its folder, {tmp_path}."):
            hub.resolve_model(str(file))


@pytest.mark.parametrize("inner", ["a-model", "snapshots/1234"])
def test_a_folder_around_a_model_names_it(inner, tmp_path):
    """The question was whether it is a model's folder."""
    folder = tmp_path / inner
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (tmp_path / "readme").write_text("")
    with pytest.raises(ModelLoadError, match=f"but in {folder}. Name that folder."):
        hub.resolve_model(str(tmp_path))
    assert hub.resolve_model(str(folder)) == folder


@pytest.mark.parametrize("name", ["model.gguf", "blob"])
def test_a_gguf_file_is_a_model(name, tmp_path):
    file = tmp_path / name
    file.write_bytes(b"GGUF")
    assert hub.resolve_model(str(file)) == file
    with pytest.raises(ModelLoadError, match="GGUF file that exists"):
        hub.resolve_model("missing.gguf")


def test_cached_id_needs_no_network(tmp_path):
    snapshot = fill_cache(tmp_path, WANTED)
    for offline in ("0", "1"):
        # The endpoint refuses connections, so any request would fail.
        result = run(
            "resolve_model",
            ["org/name"],
            tmp_path,
            HF_HUB_OFFLINE=offline,
            HF_ENDPOINT="http://127.0.0.1:9",
        )
        assert result.stdout.strip() == str(snapshot), result.stderr


def test_unknown_id_offline_is_one_clear_error(tmp_path):
    result = run("resolve_model", ["org/other"], tmp_path, HF_HUB_OFFLINE="1")
    assert result.returncode == 1
    assert result.stderr.startswith("[load] the model must be a folder, quire-tiny, or a hub id")
    assert "not in the cache, and HF_HUB_OFFLINE forbids the network" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.fixture
def endpoint():
    with serving(HubStandIn({"org/name": FILES})) as hub:
        yield hub.url


@pytest.mark.parametrize("cached", [(), ("config.json",)])
def test_download_brings_only_what_is_read(tmp_path, endpoint, cached):
    if cached:
        fill_cache(tmp_path, cached)
    result = run("resolve_model", ["org/name"], tmp_path, HF_ENDPOINT=endpoint)
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "hub" / "models--org--name" / "snapshots" / COMMIT
    assert result.stdout.strip() == str(folder)
    assert {path.name for path in folder.iterdir()} == WANTED
    assert (folder / "config.json").read_bytes() == FILES["config.json"]


def test_id_unknown_to_the_hub_is_one_clear_error(tmp_path, endpoint):
    result = run("download_model", ["org/other"], tmp_path, HF_ENDPOINT=endpoint)
    assert result.returncode == 1
    assert (
        "[load] the model must be a folder, quire-tiny, or a hub id; got org/other" in result.stderr
    )
    assert "Traceback" not in result.stderr


def test_the_embedded_draft_has_a_name(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert hub.resolve_model("quire-tiny-draft").name == "quire-tiny-draft"
    assert hub.find_model("quire-tiny-draft") == hub.resolve_model("quire-tiny-draft")
