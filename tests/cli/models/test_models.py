"""``quire list``, ``show``, ``create``, ``copy`` and ``rm``, as people run them."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import pytest

from quire.checkpoints.embedded import ASSETS
from quire.store.named_models import catalogue
from tests.commands import run_quire
from tests.servers import start_server
from tests.store.hub_stand_in import HubStandIn, serving


@pytest.fixture
def quire_with(tmp_path):
    """Return what runs ``quire`` with caches of its own and further settings."""
    own = {"QUIRE_CACHE": str(tmp_path / "quire"), "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}

    def with_settings(**settings: str):
        def run(*args: str, code: int = 0, stdin: str = "") -> str:
            done = run_quire(*args, stdin=stdin, **(own | settings))
            assert done.returncode == code, done.stderr
            return done.stdout if code == 0 else done.stderr

        return run

    return with_settings


@pytest.fixture
def quire(quire_with):
    """Run ``quire`` with caches of its own."""
    return quire_with()


def write(folder: Path, text: str) -> str:
    # It looks at tools, but in no format whose calls could be recognised.
    shown = "{% for m in messages %}{{ m.role }};{% endfor %}{% if tools %}{{ tools }}{% endif %}"
    (folder / "chat.jinja").write_text(shown)
    (folder / "preset.toml").write_text(text)
    return str(folder / "preset.toml")


PRESET = """
base = "quire-tiny"
system = "Be short."
template = "chat.jinja"
[sampling]
temperature = 0.25
[[messages]]
role = "user"
content = "1+1"
[[messages]]
role = "assistant"
content = "2"
"""


def test_a_preset_is_made_listed_shown_copied_and_removed(quire, tmp_path):
    quire("create", "Mine", "-f", write(tmp_path, PRESET))
    quire("copy", "mine", "other:v2")
    listed = {model["name"]: model for model in json.loads(quire("list", "--json"))}
    assert list(listed)[:2] == ["quire-tiny", "quire-tiny-vision"]
    assert set(list(listed)[2:]) == {"Mine", "other:v2"}
    assert (
        listed["Mine"]["digest"] == listed["other:v2"]["digest"] != listed["quire-tiny"]["digest"]
    )
    shown = json.loads(quire("show", "mine:latest", "--json"))
    assert shown["sampling"] == {"temperature": 0.25} and shown["system"] == "Be short."
    assert shown["messages"] == ["user: 1+1", "assistant: 2"]
    assert shown["template"].startswith("{% for m") and shown["parent"] == "quire-tiny"
    assert (shown["context"], shown["architecture"]) == (2048, "LlamaForCausalLM")
    assert shown["capabilities"] == ["completion", "embedding"], "as a server says"
    whole = json.loads(quire("show", "quire-tiny", "--json"))
    assert whole["capabilities"] == ["completion", "embedding", "tools"]
    assert "removed Mine, 0.0 MB freed; its files stay for" in quire("rm", "MINE", "other:v2")
    left = [line.split()[0] for line in quire("list").splitlines()]
    assert left == ["NAME", "quire-tiny", "quire-tiny-vision"]


def test_a_preset_answers(quire, tmp_path):
    preset = write(tmp_path, 'base = "quire-tiny"\n[sampling]\ntemperature = 0\nmax_tokens = 4\n')
    quire("create", "mine", "-f", preset)
    flags = ("--memory", "64MiB", "--threads", "1")
    said = quire("generate", "--model", "mine", "--prompt", "The cat", *flags)
    assert said == quire(
        "generate", "--model", "quire-tiny", "--prompt", "The cat", "--temperature", "0",
        "--max-tokens", "4", *flags,
    )  # fmt: skip


def test_a_preset_is_served_and_talked_to(quire, tmp_path, device):
    quire("create", "mine", "-f", write(tmp_path, PRESET.replace("0.25", "0.0")))
    flags = ["--device", device, "--memory", "64MiB", "--threads", "1"]
    server = start_server(["mine", *flags, "--port", "0"], QUIRE_CACHE=str(tmp_path / "quire"))
    try:
        url = server.wait_ready()
        asked = {"role": "user", "content": "Hi"}
        system = {"role": "system", "content": "Be short."}
        with httpx2.Client(base_url=url) as client:
            assert client.get("/v1/models").json()["data"][0]["id"] == "mine"
            tokens = [
                client.post("/tokenize", json={"messages": messages}).json()["tokens"]
                for messages in ([asked], [system, asked])
            ]
            assert tokens[0] == tokens[1]
            body = {"messages": [asked]}
            prompt = client.post("/apply-template", json=body).json()["prompt"]
            assert prompt == "system;user;assistant;user;"
            body = {"messages": [asked], "max_tokens": 6}
            answers = {
                client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"][
                    "content"
                ]
                for _ in range(3)
            }
            assert len(answers) == 1, "temperature 0 is the preset's"
    finally:
        server.popen.terminate()
        server.end()
    said = quire("chat", "mine", *flags, "--max-tokens", "6", stdin="Hi\n")
    assert said.removesuffix("\n") in answers


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base =", "must be a readable TOML file"),
        ("system = 'x'", "must name a base"),
        ("base = 'quire-tiny'\nsistem = 'x'", "got sistem"),
        ("base = 'quire-tiny'\nadapter = 'x'", "got adapter"),
        ("base = 'quire-tiny'\nsystem = 3", "system must be text; got 3"),
        ("base = 'quire-tiny'\ntemplate = 'none.jinja'", "template must be a file"),
        ("base = 'quire-tiny'\ntemplate = 'preset.toml'\nsystem = '{% for'", "Jinja chat"),
        ("base = 'quire-tiny'\n[sampling]\ntemperature = -1", "temperature"),
        ("base = 'quire-tiny'\n[sampling]\nmirostat = 1", "got mirostat"),
        ("base = 'quire-tiny'\nmessages = [{role = 'system', content = 'x'}]", "messages[0] must"),
        ("base = 'quire-tiny'\nmessages = [{role = 'user'}]", "messages[0] must have a role"),
        ("base = 'nothing'", "the base must be a model; got 'nothing'"),
    ],
)
def test_a_wrong_preset_is_refused(text, said, quire, tmp_path):
    error = quire("create", "mine", "-f", write(tmp_path, text), code=1)
    assert error.startswith("quire: [create]") or "Jinja" in error
    assert said in error and len(error.splitlines()) == 1
    assert "mine" not in quire("list")


def test_a_preset_is_made_by_flags_or_of_a_modelfile(quire, tmp_path):
    """The simplest preset needed a file, and a Modelfile was "no readable TOML"."""
    flags = ("--system", "Be short.", "--temperature", "0", "--stop", "x")
    quire("create", "mine", "--from", "quire-tiny", *flags)
    shown = json.loads(quire("show", "mine", "--json"))
    assert (shown["parent"], shown["system"]) == ("quire-tiny", "Be short.")
    assert shown["sampling"] == {"temperature": 0.0, "stop": ["x"]}
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text('FROM mine\nSYSTEM """Be long."""\nPARAMETER num_ctx 64\n')
    done = run_quire("create", "tutor", "-f", str(modelfile), QUIRE_CACHE=str(tmp_path / "quire"))
    assert done.returncode == 0
    assert done.stderr == (
        "PARAMETER num_ctx is the server's setting: quire serve --max-model-len 64\n"
    )
    shown = json.loads(quire("show", "tutor", "--json"))
    assert (shown["system"], shown["sampling"]["stop"]) == ("Be long.", ["x"])
    modelfile.write_text("FROM mine\nTEMPLATE {{ .Prompt }}\n")
    assert "TEMPLATE must be in Jinja" in quire("create", "t", "-f", str(modelfile), code=1)
    both = ("--from", "mine", "-f", str(modelfile))
    assert "either --from MODEL" in quire("create", "t", *both, code=2)
    assert "either --from MODEL" in quire("create", "t", code=2)


def test_a_model_of_the_catalogue_that_is_not_here_is_shown(quire):
    shown = json.loads(quire("show", "qwen3", "--json"))
    assert shown["name"] == "qwen3:4b" and shown["licence"] == "apache-2.0"
    assert "quire pull qwen3" in shown["problem"]
    catalogue = quire("list", "--catalogue").splitlines()
    assert len(catalogue) > 20 and catalogue[1].startswith("smollm2 ")
    assert json.loads(quire("list", "--catalogue", "--json"))[0]["bytes"] == 98_362_432


def test_a_folder_without_a_name_is_shown(quire, model):
    shown = json.loads(quire("show", str(model), "--json"))
    assert shown["parameters"] > 0 and shown["path"] == str(model)


@pytest.mark.parametrize("command", ["show", "rm"])
def test_names_that_nothing_has_are_refused(command, quire):
    assert f"[{command}] the model must be" in quire(command, "nothing", code=1)


def test_the_files_of_a_repository_are_told_apart(quire_with):
    names = ("Small-Q8_0.gguf", "Small-Q4_K_M.gguf", "Small-Q1_0.gguf")
    hub = HubStandIn({"org/small": dict.fromkeys(names, b"GGUF"), "org/none": {"README.md": b""}})
    hub.sizes = {names[0]: 10**15}
    with serving(hub):
        said = quire_with(HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="")
        told = {
            file["file"]: file for file in json.loads(said("show", "org/small", "--hub", "--json"))
        }
        assert {name: file["verdict"] for name, file in told.items()} == {
            names[0]: "does not fit", names[1]: "fits", names[2]: "cannot be loaded",
        }  # fmt: skip
        assert [name for name, file in told.items() if file["default"]] == [names[1]]
        shown = said("show", "org/small", "--hub").splitlines()
        assert "org/small means Small-Q4_K_M.gguf" in shown[-1] and len(shown) == 5
        assert "needs a repository with GGUF files" in said("show", "org/none", "--hub", code=1)
        assert "needs a model of the hub" in said("show", "quire-tiny", "--hub", code=1)
        assert not hub.fetched()
        pulled = said("pull", "org/small")
        assert pulled.endswith("/Small-Q4_K_M.gguf\n")


def test_the_model_inside_stays(quire):
    assert "is part of the package and stays" in quire("rm", "quire-tiny", code=1)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("qwen4", "Did you mean qwen3:"),
        ("llama3", "Did you mean llama3."),
        ("zzz", "none of these."),
    ],
)
def test_an_unknown_name_names_the_nearest_ones(quire, name, meant):
    """``pull qwen4`` said that the hub cannot be reached, and to run quire pull."""
    told = quire("pull", name, code=1)
    assert f"[load] {name} must be a folder" in told and meant in told
    assert "cannot be reached" not in told and told.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("quantize", ("out", "--method", "rtn")),
        ("convert", ("out.gguf",)),
        ("imatrix", ("out.gguf",)),
        ("merge", ("adapter", "out")),
    ],
)
def test_what_needs_floats_names_those_of_a_short_name(quire, tmp_path, command, arguments):
    """It named the file that it could not read, and not the checkpoint that it needed."""
    first, *rest = arguments
    told = quire(command, "smollm2", str(tmp_path / first), *rest, code=1)
    assert "Its floats are HuggingFaceTB/SmolLM2-135M-Instruct." in told


def test_every_name_has_the_checkpoint_that_its_file_was_made_of():
    for model in catalogue().values():
        assert model.floats.count("/") == 1 and "GGUF" not in model.floats, model.name


def test_an_adapter_is_no_model(quire):
    """Its remedy was to complete the folder's tokenizer."""
    folder = ASSETS / "quire-tiny-adapters/sql"
    told = quire("serve", str(folder), "--dry-run", code=1)
    assert "is an adapter" in told and f"--lora-modules NAME={folder}" in told


def test_a_quantized_folder_is_not_converted(quire, tmp_path):
    """It said that 202 tensors were missing, and to check that both belong together."""
    config = json.loads((ASSETS / "quire-tiny/config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    told = quire("convert", str(tmp_path), str(tmp_path / "out.gguf"), code=1)
    assert "MODEL must hold floats" in told and "which is quantized" in told


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "tutro"),
        ("rm", "tutro"),
        ("copy", "tutro", "new"),
        ("create", "new", "--from", "tutro"),
        ("run", "tutro", "Hi", "--base-url", "http://127.0.0.1:1"),
    ],
)
def test_a_name_that_was_made_here_was_never_meant(quire, arguments):
    """Only names of the catalogue were near to a wrong one, and for most commands none."""
    quire("create", "tutor", "--from", "quire-tiny")
    assert "Did you mean tutor?" in quire(*arguments, code=1)


def test_an_adapter_of_the_package_is_taken_by_its_name(quire):
    """``--lora-modules`` knew it, ``--lora`` looked for a folder of that name."""
    asked = ("generate", "--prompt", "x", "--max-tokens", "3", "--temperature", "0")
    named, plain = quire(*asked, "--lora", "quire-tiny-sql"), quire(*asked)
    assert named == quire(*asked, "--lora", str(ASSETS / "quire-tiny-adapters/sql")) != plain
