"""``quire convert`` and the commands that take its file."""

from __future__ import annotations

import json
import os
import re
import shutil
from array import array

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.checkpoints.gguf.gguf_file import GgufFile
from quire.checkpoints.gguf.gguf_writer import write_gguf
from quire.checkpoints.tensor_source import check_tensors
from quire.core.errors import ModelLoadError
from quire.llm.requests.generation_defaults import read_generation_config
from quire.models.config.config_reader import read_model_config
from quire.models.family_tensors import open_tensors, stored_names
from quire.models.weight_map import WeightMap
from quire.text.tokenizers.tokenizer import load_tokenizer

PROMPTS = ("--prompt", "one", "--prompt", "number two", "--temperature", "0", "--max-tokens", "8")


@pytest.fixture(scope="module")
def gguf(quire, model, tmp_path_factory):
    """A file of the random Llama, with sampling defaults and a second end token."""
    folder = tmp_path_factory.mktemp("gguf")
    generation = {"temperature": 0.7, "top_k": 7, "do_sample": True, "eos_token_id": [256, 258]}
    path = model / "generation_config.json"
    path.write_text(json.dumps(generation))
    try:
        result = quire("convert", str(model), str(folder / "m.gguf"), "--type", "f32")
    finally:
        path.unlink()
    assert result.returncode == 0, result.stderr
    assert "m.gguf: " in result.stdout
    return folder / "m.gguf"


def test_file_answers_as_the_folder_does(quire, model, gguf):
    want = quire("generate", str(model), *PROMPTS, "--json")
    got = quire("generate", str(gguf), *PROMPTS, "--json")
    assert got.returncode == 0, got.stderr
    ids = [[json.loads(line)["token_ids"] for line in r.stdout.splitlines()] for r in (want, got)]
    assert ids[0] == ids[1]


def test_everything_is_inside(gguf, model):
    file = GgufFile(gguf)
    assert file.integer("tokenizer.ggml.eos_token_id") == 256
    assert file.integer("tokenizer.ggml.eot_token_id") == 258
    assert file.metadata["general.sampling.temp"] == pytest.approx(0.7)
    assert file.metadata["general.sampling.top_k"] == 7
    assert read_model_config(gguf).eos_token_ids == (256, 258)
    messages = [{"role": "user", "content": "x"}]
    want = load_tokenizer(model).chat_template.render(messages)
    assert load_tokenizer(gguf).chat_template.render(messages) == want


def test_sampling_defaults_are_the_files(gguf):
    assert read_generation_config(gguf, "auto").sampling == {"temperature": 0.7, "top_k": 7}
    assert read_generation_config(gguf, "none").sampling == {}


@pytest.mark.parametrize("value", [-1.0, "hot", [1]])
def test_sampling_defaults_out_of_range_are_refused(value, tmp_path):
    path = tmp_path / "m.gguf"
    value = array("f", value) if isinstance(value, list) else value
    write_gguf(path, {"general.sampling.temp": value}, [])
    with pytest.raises(ModelLoadError, match=r"m.gguf must hold sampling settings.*temperature"):
        read_generation_config(path, "auto")
    assert read_generation_config(path, "none").sampling == {}


def test_sampling_defaults_that_a_file_cannot_say(quire, model, tmp_path):
    """A top_k of -1, as good as 0, and a penalty beyond float32 were tracebacks."""
    folder, out = tmp_path / "model", tmp_path / "m.gguf"
    shutil.copytree(model, folder)
    (folder / "generation_config.json").write_text('{"top_k": -1}')
    assert quire("convert", str(folder), str(out), "--type", "q4_0").returncode == 0
    assert read_generation_config(out, "auto").sampling == {"top_k": 0}
    (folder / "generation_config.json").write_text('{"repetition_penalty": 1e200}')
    result = quire("convert", str(folder), str(out), "--force")
    assert result.returncode == 1
    assert "[repetition_penalty] must be in [1e-06, 1000000.0]; got 1e+200." in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_end_tokens_beyond_the_vocabulary_are_left_out(quire, model, tmp_path):
    """-1 was a traceback, and a file with an id beyond its tokens was refused by its reader."""
    folder, out = tmp_path / "model", tmp_path / "m.gguf"
    shutil.copytree(model, folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": [-1, 5000, 258]}')
    result = quire("convert", str(folder), str(out), "--type", "q4_0")
    assert result.returncode == 0, result.stderr
    assert "end tokens [-1, 5000] have no place in OUT" in result.stderr
    assert 258 in read_model_config(out).eos_token_ids
    assert load_tokenizer(out).vocab_size


def test_few_bits_need_an_importance(quire, tmp_path):
    out = tmp_path / "m.gguf"
    result = quire("convert", "quire-tiny", str(out), "--type", "iq2_xxs")
    assert result.returncode == 1
    assert "--imatrix must say how much errors of blk.0." in result.stderr
    assert "Make one with quire imatrix, or take iq3_s" in result.stderr
    assert not list(tmp_path.iterdir())


def test_existing_file_is_kept_without_force(quire, model, tmp_path):
    out = tmp_path / "m.gguf"
    out.write_text("precious")
    result = quire("convert", str(model), str(out))
    assert result.returncode == 1
    assert "Give --force to replace it" in result.stderr
    assert out.read_text() == "precious"
    assert quire("convert", str(model), str(out), "--force").returncode == 0
    assert quire("convert", str(out), str(tmp_path / "b.gguf")).returncode == 1


def test_other_files_are_left_alone(quire, model, tmp_path):
    """The name a file was written under was another file's, and a link to nothing was replaced."""
    (tmp_path / "m.gguf.part").write_text("precious")
    (tmp_path / "link.gguf").symlink_to(tmp_path / "nowhere.gguf")
    assert quire("convert", str(model), str(tmp_path / "m.gguf"), "--type", "Q8_0").returncode == 0
    assert (tmp_path / "m.gguf.part").read_text() == "precious"
    result = quire("convert", str(model), str(tmp_path / "link.gguf"))
    assert result.returncode == 1 and "OUT must not exist" in result.stderr
    names = {"m.gguf", "m.gguf.part", "link.gguf"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_places_that_cannot_be_written_are_one_sentence(quire, model, tmp_path):
    """Without a folder or room it was the bare error number; a device was replaced by a file."""
    os.mkfifo(tmp_path / "pipe")
    places = {
        tmp_path / "no" / "m.gguf": "OUT must be in a folder that exists",
        tmp_path / "pipe": "OUT must be a file to be replaced",
        tmp_path / ("m" * 250): "OUT must be writable; got .*: File name too long",
    }
    for out, said in places.items():
        result = quire("convert", str(model), str(out), "--force")
        assert result.returncode == 1
        assert re.fullmatch(rf"quire: \[convert\] {said}.*\n", result.stderr), result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    assert (tmp_path / "pipe").is_fifo()


def test_calc_reads_a_file(quire, gguf, model):
    sizes = [
        json.loads(quire("calc", "kv", str(path), "--json").stdout)[0]["bytes"]
        for path in (gguf, model)
    ]
    assert sizes[0] == sizes[1]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_mutated_model_loads_or_is_refused(gguf, tmp_path, data):
    """Whatever the header says, configuration, tokenizer and tensors end in ModelLoadError."""
    header = 20_000
    content = bytearray(gguf.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, header))
        new = data.draw(st.binary(min_size=1, max_size=8))
        content[at : at + len(new)] = new
    path = tmp_path / "mutated.gguf"
    path.write_bytes(bytes(content))
    try:
        config = read_model_config(path)
        source = open_tensors(path, config)
        names = stored_names(source, config)
        shapes = WeightMap(config, names).shapes()
        check_tensors(source, shapes, names.harmless)
        for name, shape in shapes.items():
            assert source.tensor(name).shape == shape
            source.release(name)
        load_tokenizer(path)
    except ModelLoadError:
        pass
